"""The size of a tower's pieces: the rows that it computes between two interruptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MOST_OPERATIONS: Final = 4e9
"""Operations of the largest pieces, about 20 ms on two cores: larger ones are not faster."""
ROW_UNIT: Final = 16
"""Pieces have a multiple of this many rows: a tile of the matrix kernels."""
MOST_ROWS: Final = 512


@dataclass(slots=True)
class PieceBudget:
    """The size of the next piece. The engine changes it between pieces, so a tower reads it before
    each piece.

    - `operations`: the floating-point operations of the next piece.
    - `taken`: the operations of the piece that `slices` gave last.
    """

    operations: float = MOST_OPERATIONS
    taken: float = 0.0

    def rows(self, row_operations: float) -> int:
        """Return the number of rows of the next piece, a multiple of 16, if one row takes
        `row_operations`."""
        rows = int(min(self.operations / max(row_operations, 1), MOST_ROWS))
        return max(rows // ROW_UNIT * ROW_UNIT, ROW_UNIT)

    def slices(self, count: int, row_operations: float) -> Iterator[slice]:
        """Yield the slices of `count` rows that are computed one after another. Each slice has at
        most the size that the budget allows when it is read; equal slices are preferred to a small
        last one."""
        start = 0
        while start < count:
            left = count - start
            pieces = -(-left // self.rows(row_operations))
            stop = min(start + _whole_units(-(-left // pieces)), count)
            self.taken = (stop - start) * row_operations
            yield slice(start, stop)
            start = stop


def _whole_units(rows: int) -> int:
    return -(-rows // ROW_UNIT) * ROW_UNIT


def most_rows(row_operations: float) -> int:
    """Return the rows of the largest piece if one row takes `row_operations`."""
    return PieceBudget().rows(row_operations)
