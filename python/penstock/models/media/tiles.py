"""Tiles: the images of one item that a tower encodes, as rows of patches in `PreparedMedia`.

`layout` is (number of tiles, rows and columns of patches of each tile, numbers of the family).
`data` are the uint8 patches of all tiles in order, [N, side * side * 3], each with its pixels row
by row. A tile that takes the place of all others beside other images may follow; the layout does
not count it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.models.media.prepared import MediaKind, Pixels, PreparedMedia

Grid: TypeAlias = tuple[int, int]
"""(rows, columns) of patches."""


@dataclass(frozen=True, slots=True)
class TileLayout:
    """The layout of an item. `grids`: the patches of each tile. `extra`: numbers that the family
    defines."""

    grids: tuple[Grid, ...]
    extra: tuple[int, ...] = ()

    @classmethod
    def of(cls, media: PreparedMedia) -> TileLayout:
        """Return the layout of an item that `pack_tiles` made."""
        count, *rest = media.layout
        grids = tuple(zip(rest[: 2 * count : 2], rest[1 : 2 * count : 2], strict=True))
        return cls(grids, tuple(rest[2 * count :]))


def pack_tiles(
    kind: MediaKind,
    tiles: Sequence[Pixels],
    patch: int,
    extra: Sequence[int] = (),
    timestamps: Sequence[float] = (),
    among: Pixels | None = None,
) -> PreparedMedia:
    """Return an item with these tiles. Pixels beyond whole patches are left out.

    - `patch`: the side of a patch in pixels.
    - `among`: the tile of the item beside other images, as large as the first one.
    """
    grids = [(tile.shape[0] // patch, tile.shape[1] // patch) for tile in tiles]
    patches = [_patches(tile, grid, patch) for tile, grid in zip(tiles, grids, strict=True)]
    if among is not None:
        patches.append(_patches(among, grids[0], patch))
    layout = (len(tiles), *(side for grid in grids for side in grid), *extra)
    data = np.concatenate(patches)
    return PreparedMedia.of(kind, data, layout, tuple(timestamps))


def tile_among(media: PreparedMedia) -> PreparedMedia:
    """Return an item with the tile alone that it has beside other images."""
    layout = TileLayout.of(media)
    counted = sum(rows * columns for rows, columns in layout.grids)
    return PreparedMedia.of(media.kind, media.array()[counted:], (1, *layout.grids[0]))


def _patches(tile: Pixels, grid: Grid, patch: int) -> npt.NDArray[np.uint8]:
    rows, columns = grid
    whole = tile[: rows * patch, : columns * patch].reshape(rows, patch, columns, patch, 3)
    patches: Pixels = whole.transpose(0, 2, 1, 3, 4).reshape(rows * columns, patch * patch * 3)
    return patches


@dataclass(frozen=True, slots=True)
class Normalization:
    """Turns bytes into the numbers that a tower was trained on: (byte * scale - mean) / std per
    channel."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    scale: float = 1 / 255

    def apply(self, patches: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return patches [N, pixels * 3] in the range of the tower, float32."""
        table = self._table()
        values = np.empty((patches.size // 3, 3), np.float32)
        channels = patches.reshape(-1, 3)
        for channel in range(3):
            values[:, channel] = table[channel][channels[:, channel]]
        return values.reshape(patches.shape)

    def rows(self, patches: npt.NDArray[np.uint8]) -> NormalizedRows:
        """Return the patches in the range of the tower, each computed when it is read."""
        return NormalizedRows(self, patches)

    def _table(self) -> npt.NDArray[np.float32]:
        """Return the value of each byte in each channel, [3, 256], rounded as transformers does:
        the scaled byte, the difference and the quotient to float32."""
        scaled = (np.arange(256, dtype=np.float64) * self.scale).astype(np.float32)
        mean, std = (np.array(each, np.float32)[:, None] for each in (self.mean, self.std))
        table: npt.NDArray[np.float32] = (scaled - mean) / std
        return table


@dataclass(frozen=True, slots=True)
class NormalizedRows:
    """Patches [N, pixels * 3] that are normalized when they are read: those of a large image take
    longer than a step of a small model."""

    normalization: Normalization
    patches: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.patches)

    def __getitem__(self, part: slice) -> npt.NDArray[np.float32]:
        return self.normalization.apply(self.patches[part])
