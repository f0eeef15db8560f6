"""Split-KV for decode attention: divides a context into splits, which different programs process in
parallel.

The size of a split depends only on the length of the context, so that the results of a row do not
depend on the rest of the batch. The size starts at the smallest split and is doubled until
`MOST_SPLITS` splits (`FEW_SPLITS` while the size is below `WHOLE_SPLIT` tokens) cover the context.
`kernels/triton/paged_attention/attention_tile.py` and `csrc/cuda/attention/chunks.h` implement the
same rule.

`kernels/tuning/chunks.json` contains the size of the smallest split. Small splits let a few short
contexts use the whole GPU, but cost memory and bandwidth if there are many contexts. So steps of up
to `FEW_ROWS` rows start at `FEW_ROWS_SPLIT` tokens, unless the bits of a row must not depend on the
number of rows of a step.
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
    """The smallest split size of the process. Data that was prepared for one size is not valid for
    another size."""

    smallest: int | None = None


def smallest_split() -> int:
    """Return the size of the smallest split in tokens, one of `SIZES`."""
    if _Chosen.smallest is None:
        _Chosen.smallest = int(json.loads(_TABLE.read_text())["smallest"])
    return _Chosen.smallest


@contextmanager
def forced_splits(smallest: int) -> Iterator[None]:
    """Use another smallest split size inside the context: for benchmarks and tests."""
    assert smallest in SIZES, smallest
    before = smallest_split()
    _Chosen.smallest = smallest
    try:
        yield
    finally:
        _Chosen.smallest = before


def split_tokens(max_model_len: int, smallest: int) -> int:
    """Return the size of a split in tokens for a context of `max_model_len` tokens."""
    size = smallest
    while size * (FEW_SPLITS if size < WHOLE_SPLIT else MOST_SPLITS) < max_model_len:
        size *= 2
    return size


def most_splits(max_model_len: int, smallest: int) -> int:
    """Return the largest number of splits of a context of up to `max_model_len` tokens."""
    splits = -(-max_model_len // split_tokens(max_model_len, smallest))
    # A shorter context may have more splits, just before the size doubles.
    size = smallest
    while size < split_tokens(max_model_len, smallest):
        splits = max(splits, FEW_SPLITS if size < WHOLE_SPLIT else MOST_SPLITS)
        size *= 2
    return splits
