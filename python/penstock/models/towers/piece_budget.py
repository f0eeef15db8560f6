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
    """

    operations: float = MOST_OPERATIONS

    def rows(self, row_operations: float) -> int:
        """Return the number of rows of the next piece, a multiple of 16, if one row takes
        `row_operations`."""
        rows = int(self.operations / max(row_operations, 1)) // ROW_UNIT * ROW_UNIT
        return min(max(rows, ROW_UNIT), MOST_ROWS)

    def slices(self, count: int, row_operations: float) -> Iterator[slice]:
        """Yield the slices of `count` rows that are computed one after another. Each slice has the
        size that the budget allows when it is read."""
        start = 0
        while start < count:
            stop = min(start + self.rows(row_operations), count)
            yield slice(start, stop)
            start = stop


def most_rows(row_operations: float) -> int:
    """Return the rows of the largest piece if one row takes `row_operations`."""
    return PieceBudget().rows(row_operations)
