"""Fits a table of learned positions, which has one row per patch of a square image, to images of
other sizes."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.models.towers.tower_weights import Floats

PositionScheme: TypeAlias = Literal["fixed", "bicubic", "antialiased", "buckets"]
"""The positions of a grid that differs from the table's. "fixed": refused. "bicubic": the table is
interpolated. "antialiased": the table is interpolated linearly, and averaged if it shrinks.
"buckets": each patch uses the row at its fraction of the image's height and width."""

Grid: TypeAlias = tuple[int, int]

_CUBIC: Final = -0.75
_LARGEST_FRACTION: Final = np.float32(1.0 - 1e-6)


class PositionGrids:
    """The position rows of images of any size, the last few of which are kept.

    `table`: [side * side, W], without the class token's row.
    """

    def __init__(self, table: Floats, scheme: PositionScheme) -> None:
        self._table = table
        self._scheme = scheme
        self._side = round(len(table) ** 0.5)
        self._fitted = lru_cache(maxsize=8)(self._fit)

    def rows(self, grid: Grid) -> Floats:
        """Return the positions of a grid of (rows, columns) of patches, [rows * columns, W]. Raises
        ModelError if a fixed table does not fit."""
        return self._fitted(grid)

    def _fit(self, grid: Grid) -> Floats:
        side = self._side
        if self._scheme == "fixed":
            if grid[0] * grid[1] != len(self._table):
                raise ModelError(
                    f"an image of {grid[0]} by {grid[1]} patches: the model has"
                    f" {len(self._table)} positions"
                )
            return self._table
        square = self._table.reshape(side, side, -1)
        if self._scheme == "buckets":
            rows, columns = (_buckets(size, side) for size in grid)
            return square[rows[:, None], columns].reshape(-1, square.shape[-1])
        if grid == (side, side) and self._scheme == "bicubic":
            return self._table
        matrix = _cubic_weights if self._scheme == "bicubic" else _linear_weights
        high, wide = (matrix(side, size) for size in grid)
        mixed = np.tensordot(high, square, (1, 0))  # [rows, side, W]
        fitted = np.matmul(wide, mixed)
        return np.ascontiguousarray(fitted.reshape(-1, square.shape[-1]), np.float32)


def _buckets(size: int, side: int) -> npt.NDArray[np.int64]:
    """Return the row or column of the table for each of `size` rows or columns of patches. Borders
    are float32, as in the models' code."""
    fractions = np.arange(size, dtype=np.float32) * (np.float32(1) / np.float32(size))
    borders = np.arange(1 / side, 1.0, 1 / side).astype(np.float32)
    found: npt.NDArray[np.int64] = np.searchsorted(
        borders, np.minimum(fractions, _LARGEST_FRACTION), side="right"
    )
    return found


def _cubic_weights(side: int, size: int) -> Floats:
    """Return the matrix [size, side] of cubic convolution, whose samples repeat at the border."""
    center = (np.arange(size) + 0.5) * (side / size) - 0.5
    base = np.floor(center).astype(np.int64)
    weights = np.zeros((size, side))
    for offset in range(-1, 3):
        distance = np.abs(center - (base + offset))
        near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance**2 + 1
        far = _CUBIC * (((distance - 5) * distance + 8) * distance - 4)
        source = np.clip(base + offset, 0, side - 1)
        np.add.at(weights, (np.arange(size), source), np.where(distance <= 1, near, far))
    return weights.astype(np.float32)


def _linear_weights(side: int, size: int) -> Floats:
    """Return the matrix [size, side] of linear interpolation over a triangle that is as wide as one
    step of the result, but at least as one of the table."""
    scale = side / size
    center = (np.arange(size) + 0.5) * scale - 0.5
    distance = np.abs(np.arange(side) - center[:, None])
    weights: npt.NDArray[np.float64] = np.maximum(1 - distance / max(scale, 1.0), 0)
    weights /= weights.sum(1, keepdims=True)
    return weights.astype(np.float32)
