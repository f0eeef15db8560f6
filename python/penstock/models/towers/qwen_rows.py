"""Computes the rows of the Qwen-VL towers from prepared pixels: patches, positions and windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.models.media.patches import merged_cells, merged_patches
from penstock.models.towers.tower_weights import Floats

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QwenGrid:
    """The division of frames into patches.

    - `patch`, `merge`, `frames_per_patch`: pixels of a side of a patch, patches of a side of a
      token, and frames of a patch.
    - `mean`, `std`: per channel, for pixels from 0 to 1.
    - `rope_theta`: the base of the rotary angles.
    - `window`: tokens of a side of an attention window; 0: no windows.
    """

    patch: int
    merge: int
    frames_per_patch: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rope_theta: float = 10_000.0
    window: int = 0

    @property
    def patch_shape(self) -> tuple[int, int, int, int]:
        """Channels, frames, rows and columns of a patch."""
        return 3, self.frames_per_patch, self.patch, self.patch

    def patches(self, frames: npt.NDArray[np.uint8]) -> Floats:
        """Return the normalized patches of one group of frames [n, height, width, 3]."""
        mean, std = np.float32(self.mean), np.float32(self.std)
        normalized = frames * (1 / (255 * std)) - mean / std
        return merged_patches(
            normalized.astype(np.float32), self.patch, self.merge, self.frames_per_patch
        )

    def rope(self, rows: int, columns: int, head_dim: int) -> Floats:
        """Return the RoPE table of the patches of a frame: [rows * columns, head_dim], in the order
        of `patches`. The first half of the angles is of the row, the second of the column."""
        exponents = np.arange(0, head_dim // 2, 2, dtype=np.float32) / np.float32(head_dim // 2)
        frequencies = (1.0 / np.float32(self.rope_theta) ** exponents).astype(np.float32)
        cells = merged_cells(1, rows, columns, self.merge).astype(np.float32)
        angles = (cells[:, :, None] * frequencies).reshape(len(cells), -1)
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)

    def positions(self, table: Floats, rows: int, columns: int) -> Floats:
        """Return the learned positions of the patches of a frame, [rows * columns, W], in the order
        of `patches`. `table`: [side * side, W], interpolated between its corners."""
        side = int(len(table) ** 0.5)
        square = table.reshape(side, side, -1)
        cells = merged_cells(1, rows, columns, self.merge)
        low, high, share = _taps(side, rows)
        tall = square[low] * (1 - share)[:, None, None] + square[high] * share[:, None, None]
        low, high, share = _taps(side, columns)
        both = tall[:, low] * (1 - share)[:, None] + tall[:, high] * share[:, None]
        return np.ascontiguousarray(both[cells[:, 0], cells[:, 1]], np.float32)

    def window_order(self, rows: int, columns: int) -> tuple[Ints, tuple[int, ...]]:
        """Return the tokens of a frame in the order of the windows, and the number of patches of
        each window."""
        tall, wide = rows // self.merge, columns // self.merge
        tokens = np.arange(tall * wide).reshape(tall, wide)
        windows = [
            tokens[top : top + self.window, left : left + self.window].reshape(-1)
            for top in range(0, tall, self.window)
            for left in range(0, wide, self.window)
        ]
        lengths = tuple(len(window) * self.merge**2 for window in windows)
        return np.concatenate(windows), lengths


def _taps(side: int, size: int) -> tuple[Ints, Ints, Floats]:
    """Return for each of `size` places on an axis the two entries of the table's `side` entries
    between which it lies, and the share of the second."""
    source = np.arange(size, dtype=np.float32) * np.float32((side - 1) / max(size - 1, 1))
    low = np.floor(source).astype(np.int64)
    return low, np.minimum(low + 1, side - 1), (source - low).astype(np.float32)
