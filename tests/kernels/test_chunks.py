"""How many chunks a context has at most, which memory is set aside for."""

from __future__ import annotations

import pytest

from penstock.kernels.chunks import (
    FEW_CHUNKS,
    MOST_CHUNKS,
    SIZES,
    WHOLE_CHUNK,
    chunk_tokens,
    chunks_of,
    most_chunks,
    smallest_chunk,
)


@pytest.mark.parametrize("smallest", SIZES)
def test_no_shorter_context_has_more_chunks(smallest: int) -> None:
    most = 0
    for context in range(1, 40_000):
        most = max(most, -(-context // chunk_tokens(context, smallest)))
        if context % 97 == 0 or context < 3000:
            assert most_chunks(context, smallest) >= most, context
    assert most_chunks(39_999, smallest) == MOST_CHUNKS


@pytest.mark.parametrize("smallest", SIZES)
def test_a_chunk_is_a_small_one_only_where_few_hold_the_context(smallest: int) -> None:
    for context in (1, smallest, 1024, 2048, 4096, 16_384, 131_072):
        size = chunk_tokens(context, smallest)
        count = -(-context // size)
        assert count <= (FEW_CHUNKS if size < WHOLE_CHUNK else MOST_CHUNKS)


def test_another_size_is_in_force_for_a_while() -> None:
    before = smallest_chunk()
    with chunks_of(64):
        assert smallest_chunk() == 64
    assert smallest_chunk() == before
