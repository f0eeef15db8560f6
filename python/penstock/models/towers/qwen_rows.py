"""Computes the rows of the Qwen-VL towers from prepared pixels: patches, positions and windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.models.media.patches import merged_cells
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
        rows, columns = (edge // self.patch for edge in frames.shape[1:3])
        return self.cut(frames, merged_cells(rows, columns, self.merge))

    def cut(self, frames: npt.NDArray[np.uint8], cells: Ints) -> Floats:
        """Return the normalized patches at `cells` [N, 2] of one group of frames, with their
        elements in the order channel, frame, row, column. A single frame is repeated."""
        side = self.patch
        count, height, width, _ = frames.shape
        divided = frames.reshape(count, height // side, side, width // side, side, 3)
        picked = divided[:, cells[:, 0], :, cells[:, 1]]  # [N, frames, side, side, 3]
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        normalized = picked * (1 / (255 * std)) - mean / std
        ordered = normalized.transpose(0, 4, 1, 2, 3)
        if count < self.frames_per_patch:
            ordered = np.repeat(ordered, self.frames_per_patch, axis=2)
        return np.ascontiguousarray(ordered.reshape(len(cells), -1), np.float32)

    def rope(self, cells: Ints, head_dim: int) -> Floats:
        """Return the RoPE table of the patches at `cells`, [N, head_dim]. The first half of the
        angles is of the row, the second of the column."""
        exponents = np.arange(0, head_dim // 2, 2, dtype=np.float32) / np.float32(head_dim // 2)
        frequencies = (1.0 / np.float32(self.rope_theta) ** exponents).astype(np.float32)
        angles = (cells[:, :, None].astype(np.float32) * frequencies).reshape(len(cells), -1)
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)

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


@dataclass(frozen=True, slots=True)
class CutPatches:
    """The patches at `cells` of one group of frames, a `RowSource`."""

    grid: QwenGrid
    frames: npt.NDArray[np.uint8]
    cells: Ints

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, part: slice) -> Floats:
        return self.grid.cut(self.frames, self.cells[part])


class FittedPositions:
    """The learned positions of the patches at `cells` of a frame with `rows` and `columns` patches,
    a `RowSource`. `table`: [side * side, W], interpolated between its corners."""

    def __init__(self, table: Floats, rows: int, columns: int, cells: Ints) -> None:
        side = int(len(table) ** 0.5)
        self._square = table.reshape(side, side, -1)
        self._rows, self._columns = _taps(side, rows), _taps(side, columns)
        self._cells = cells

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, part: slice) -> Floats:
        rows, columns = self._cells[part].T
        top, bottom, down = (each[rows] for each in self._rows)
        left, right, across = (each[columns] for each in self._columns)
        sides = [
            self._square[top, at] * (1 - down)[:, None] + self._square[bottom, at] * down[:, None]
            for at in (left, right)
        ]
        fitted = sides[0] * (1 - across)[:, None] + sides[1] * across[:, None]
        return np.ascontiguousarray(fitted, np.float32)


def _taps(side: int, size: int) -> tuple[Ints, Ints, Floats]:
    """Return for each of `size` places on an axis the two entries of the table's `side` entries
    between which it lies, and the share of the second."""
    source = np.arange(size, dtype=np.float32) * np.float32((side - 1) / max(size - 1, 1))
    low = np.floor(source).astype(np.int64)
    return low, np.minimum(low + 1, side - 1), (source - low).astype(np.float32)
