"""Rotation by the row and the column of a patch (2-D RoPE)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.models.media.tiles import Grid
from penstock.models.towers.tower_weights import Floats


@dataclass(frozen=True, slots=True)
class AxialRope:
    """A rotation of which half of the pairs of a head's elements follow the row of a patch, and the
    other half its column. The frequencies of a rotation by `dim` elements with base `theta` belong
    alternately to the row and to the column (Pixtral)."""

    theta: float
    dim: int

    def table(self, grid: Grid) -> Floats:
        """Return the cosines, then the sines, of the angles of each patch: [N, dim] float32."""
        frequencies = self.theta ** -(np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        frequencies = frequencies.astype(np.float32)
        rows, columns = np.indices(grid, dtype=np.float32).reshape(2, -1, 1)
        angles = np.concatenate((rows * frequencies[0::2], columns * frequencies[1::2]), axis=1)
        return np.concatenate((np.cos(angles), np.sin(angles)), axis=1, dtype=np.float32)
