"""Sums of squares of the inputs of matrix products, which say how much each column of a weight
matters. llama.cpp calls these sums an importance matrix."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]


class ColumnSquares:
    """The sums for one matrix, or for the matrices of all experts of a layer.

    `sums`: [E, C] float64, the sum of the squares of each input column. E is 1 for one matrix.
    `counts`: [E] int64, the number of rows that were summed.
    """

    def __init__(self, experts: int, columns: int) -> None:
        self.sums = np.zeros((experts, columns), np.float64)
        self.counts = np.zeros(experts, np.int64)

    def add(self, rows: Floats, expert: int = 0) -> None:
        """Add input rows [T, C]. A row that is not finite belongs to a failed request and does not
        count."""
        with np.errstate(over="ignore", invalid="ignore"):
            squares: npt.NDArray[Any] = np.einsum("tc,tc->c", rows, rows)
            if not np.isfinite(squares).all():
                rows = rows[np.isfinite(np.einsum("tc,tc->t", rows, rows))]
                squares = np.einsum("tc,tc->c", rows, rows, dtype=np.float64)
        self.sums[expert] += squares
        self.counts[expert] += len(rows)

    def means(self) -> Floats:
        """Return the mean squares [E, C]; 1 for all columns of an expert without rows. They are
        those of the sums as float32, which files have."""
        sums, counts = self.sums.astype(np.float32), self.counts.astype(np.float32)[:, None]
        means = np.divide(sums, counts, out=np.ones_like(sums), where=counts > 0)
        return means


Squares: TypeAlias = MutableMapping[str, ColumnSquares]
"""Name of a tensor in the checkpoint -> its sums. A name that contains {} means the tensors of
all experts of a layer."""


def add_rows(squares: Squares, names: tuple[str, ...], rows: Floats) -> None:
    """Add input rows [T, C] of a linear layer to the sums of its matrices `names`."""
    for name in dict.fromkeys(names):
        if name not in squares:
            squares[name] = ColumnSquares(1, rows.shape[1])
        squares[name].add(rows)
