"""How decode attention cuts a context into chunks that different programs attend to.

The size of a chunk follows from the length of its context alone, so that a row's sums do not depend
on its batch. It is the smallest size, doubled until `MOST_SPLITS` chunks hold the context; of
chunks below `WHOLE_SPLIT` tokens a context has no more than `FEW_SPLITS`. The same rule is in
`kernels/triton/paged_attention/attention_tile.py` and `csrc/cuda/attention/chunks.h`.

`kernels/tuning/chunks.json` has the smallest size: small chunks let a few short contexts use the
whole GPU, and cost memory and bandwidth if there are many. So steps of up to `FEW_ROWS` rows have
the smallest size of all, except where bits must not depend on the size of a step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZES = (64, 128, 256)
WHOLE_SPLIT = 256
FEW_SPLITS, MOST_SPLITS = 16, 64
FEW_ROWS, FEW_ROWS_SPLIT = 12, 64

_TABLE = Path(__file__).parent / "tuning" / "chunks.json"


class _Chosen:
    """For the process: what was prepared with one size serves with that size alone."""

    smallest: int | None = None


def smallest_split() -> int:
    """Keys of the smallest chunk, one of `SIZES`."""
    if _Chosen.smallest is None:
        _Chosen.smallest = int(json.loads(_TABLE.read_text())["smallest"])
    return _Chosen.smallest


@contextmanager
def forced_splits(smallest: int) -> Iterator[None]:
    """Within, another smallest chunk: for benchmarks and tests."""
    assert smallest in SIZES, smallest
    before = smallest_split()
    _Chosen.smallest = smallest
    try:
        yield
    finally:
        _Chosen.smallest = before


def split_tokens(max_model_len: int, smallest: int) -> int:
    """Keys of a chunk of a context."""
    size = smallest
    while size * (FEW_SPLITS if size < WHOLE_SPLIT else MOST_SPLITS) < max_model_len:
        size *= 2
    return size


def most_splits(max_model_len: int, smallest: int) -> int:
    """The most chunks that a context of up to so many tokens has."""
    chunks = -(-max_model_len // split_tokens(max_model_len, smallest))
    # A shorter context may have more of them, where the size doubles.
    size = smallest
    while size < split_tokens(max_model_len, smallest):
        chunks = max(chunks, FEW_SPLITS if size < WHOLE_SPLIT else MOST_SPLITS)
        size *= 2
    return chunks
