"""The most splits of a context, for which memory is allocated."""

from __future__ import annotations

import pytest

from penstock.kernels.kv_splits import (
    FEW_SPLITS,
    MOST_SPLITS,
    SIZES,
    WHOLE_SPLIT,
    forced_splits,
    most_splits,
    smallest_split,
    split_tokens,
)


@pytest.mark.parametrize("smallest", SIZES)
def test_no_shorter_context_has_more_splits(smallest: int) -> None:
    most = 0
    for context in range(1, 40_000):
        most = max(most, -(-context // split_tokens(context, smallest)))
        if context % 97 == 0 or context < 3000:
            assert most_splits(context, smallest) >= most, context
    assert most_splits(39_999, smallest) == MOST_SPLITS


@pytest.mark.parametrize("smallest", SIZES)
def test_splits_are_small_only_if_few_hold_the_context(smallest: int) -> None:
    for context in (1, smallest, 1024, 2048, 4096, 16_384, 131_072):
        size = split_tokens(context, smallest)
        count = -(-context // size)
        assert count <= (FEW_SPLITS if size < WHOLE_SPLIT else MOST_SPLITS)


def test_forced_split_size_is_temporary() -> None:
    before = smallest_split()
    with forced_splits(64):
        assert smallest_split() == 64
    assert smallest_split() == before
