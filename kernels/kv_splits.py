"""Split-KV for decode attention: divides a context into splits that different programs attend to.

The size of a split depends only on the length of its context, so that the sums of a row do not
depend on its batch. It is the smallest size, doubled until `MOST_SPLITS` splits hold the context;
with splits below `WHOLE_SPLIT` tokens a context has at most `FEW_SPLITS`. The same rule is in
`kernels/triton/paged_attention/attention_tile.py` and `csrc/cuda/attention/chunks.h`.

`kernels/tuning/chunks.json` has the smallest size: small splits let a few short contexts use the
whole GPU, and cost memory and bandwidth if there are many. So steps of up to `FEW_ROWS` rows use
the smallest size of all, unless bits must not depend on the size of a step.
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
    """The smallest split of the process: results prepared with one size are valid for that size
    only."""

    smallest: int | None = None


def smallest_split() -> int:
    """Return the keys of the smallest split, one of `SIZES`."""
    if _Chosen.smallest is None:
        _Chosen.smallest = int(json.loads(_TABLE.read_text())["smallest"])
    return _Chosen.smallest


@contextmanager
def forced_splits(smallest: int) -> Iterator[None]:
    """Use another smallest split inside the context: for benchmarks and tests."""
    assert smallest in SIZES, smallest
    before = smallest_split()
    _Chosen.smallest = smallest
    try:
        yield
    finally:
        _Chosen.smallest = before


def split_tokens(max_model_len: int, smallest: int) -> int:
    """Return the keys per split of a context of `max_model_len` tokens."""
    size = smallest
    while size * (FEW_SPLITS if size < WHOLE_SPLIT else MOST_SPLITS) < max_model_len:
        size *= 2
    return size


def most_splits(max_model_len: int, smallest: int) -> int:
    """Return the most splits that a context of up to `max_model_len` tokens has."""
    splits = -(-max_model_len // split_tokens(max_model_len, smallest))
    # A shorter context may have more splits, just before the size doubles.
    size = smallest
    while size < split_tokens(max_model_len, smallest):
        splits = max(splits, FEW_SPLITS if size < WHOLE_SPLIT else MOST_SPLITS)
        size *= 2
    return splits
