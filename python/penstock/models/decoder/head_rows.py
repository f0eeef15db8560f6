"""Orders of the rows of query and key projections."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def deinterleaved_rows(heads: int, head_dim: int, rotated: int) -> npt.NDArray[np.intp]:
    """Return the order of rows, [heads * head_dim], that moves the rotated components (2i, 2i + 1)
    of each head to (i, i + rotated / 2)."""
    head = np.arange(head_dim)
    head[:rotated] = np.arange(rotated).reshape(-1, 2).T.reshape(-1)
    order: npt.NDArray[np.intp] = (np.arange(heads)[:, None] * head_dim + head).reshape(-1)
    return order


def gated_rows(heads: int, head_dim: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the rows of the queries and those of the output gate in a matrix that has both of each
    head in turn."""
    rows = np.arange(2 * heads * head_dim).reshape(heads, 2, head_dim)
    return rows[:, 0].reshape(-1), rows[:, 1].reshape(-1)
