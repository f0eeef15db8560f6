"""Compares matrices of a checkpoint."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.kernels.weights import Dense, Matrix

COMPARED_ROWS: Final = 1024


def equal_matrices(a: Matrix, b: Matrix) -> bool:
    """Return whether two matrices of floats are equal, comparing them in pieces to save memory.
    Matrices of quantized weights count as different."""
    if not isinstance(a, Dense) or not isinstance(b, Dense) or a.shape != b.shape:
        return False
    firsts = range(0, len(a.data), COMPARED_ROWS)
    pieces = (slice(first, first + COMPARED_ROWS) for first in firsts)
    return a.dtype == b.dtype and all(np.array_equal(a.data[rows], b.data[rows]) for rows in pieces)
