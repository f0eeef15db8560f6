"""Cuts images into the tiles of Phi-4-multimodal ("dynamic HD"), and gives their tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from penstock.models.media.image_config import BILINEAR
from penstock.models.media.image_processor import Part
from penstock.models.media.images import cut_tiles, refused_shape, resize
from penstock.models.media.prepared import Pixels, PreparedMedia
from penstock.models.media.tiles import Grid, TileLayout
from penstock.models.media.tilings import closest_grid

_WHITE: Final = 255
_SHORTEST: Final = 10
"""Images that become thinner than this many pixels are refused."""


class HdGrid(NamedTuple):
    """The tiles of an image.

    - `rows`, `columns`: of tiles.
    - `high`, `wide`: rows and columns of patches that show the image; white borders follow.
    """

    rows: int
    columns: int
    high: int
    wide: int

    @property
    def kept(self) -> Grid:
        """The rows and columns of squares of 2 x 2 patches that become tokens."""
        return (self.high + 1) // 2, (self.wide + 1) // 2


@dataclass(frozen=True, slots=True)
class HdTiles:
    """A Tiling: an image fills square tiles of `side` pixels from the top left, and white follows.

    - `grids`: (rows, columns) of tiles that large images may have, by ascending number of tiles.
    - `patch`: the side of a patch in pixels.
    """

    side: int
    patch: int
    grids: tuple[Grid, ...]

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """See Tiling. `extra` is an HdGrid."""
        height, width = pixels.shape[:2]
        rows, columns = math.ceil(height / self.side), math.ceil(width / self.side)
        most_rows, most_columns = self.grids[-1]
        if rows * columns > most_rows * most_columns:
            rows, columns = closest_grid(pixels, self.grids, (self.side, self.side))
        canvas = np.full((rows * self.side, columns * self.side, 3), _WHITE, np.uint8)
        by_height, by_width = canvas.shape[0] / height, canvas.shape[1] / width
        if by_width < by_height:
            size = int(height * by_width), canvas.shape[1]
        else:
            size = canvas.shape[0], int(width * by_height)
        if min(size) < _SHORTEST:
            raise refused_shape(pixels)
        canvas[: size[0], : size[1]] = resize(pixels, size, BILINEAR)
        border = [(all_ - own) // self.patch for all_, own in zip(canvas.shape, size, strict=False)]
        across = self.side // self.patch
        grid = HdGrid(rows, columns, rows * across - border[0], columns * across - border[1])
        return cut_tiles(canvas, (self.side, self.side)), grid


@dataclass(frozen=True, slots=True)
class HdRows:
    """A Marking: the lines of the tiles and of the whole image, each with a row at its end, and a
    row in between. `across`: patches on a side of a tile."""

    across: int

    def parts(self, media: PreparedMedia, layout: TileLayout) -> Iterable[Part]:
        """See Marking."""
        high, wide = HdGrid(*layout.extra).kept
        half = self.across // 2
        return (high * (wide + 1) + 1 + half * (half + 1),)
