"""Ways to cut images into tiles that several families share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.models.media.images import (
    Size,
    best_canvas,
    center_crop,
    cut_tiles,
    fit_canvas,
    pad_to_square,
    resize,
    shortest_edge_size,
)
from penstock.models.media.prepared import Pixels


@dataclass(frozen=True, slots=True)
class SingleTile:
    """An image becomes one tile of a fixed size.

    - `size`: the size, or the length of the shorter side.
    - `resampling`: a filter of Pillow, see `images.RESAMPLINGS`.
    - `crop`: the size of the middle that is kept; None: all of the image.
    - `background`: the color of the square in whose middle the image is placed first; None: no
      square.
    """

    size: Size | int
    resampling: int
    crop: Size | None = None
    background: tuple[int, int, int] | None = None

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """See Tiling."""
        if self.background is not None:
            pixels = pad_to_square(pixels, self.background)
        size = self.size
        if isinstance(size, int):
            size = shortest_edge_size(pixels, size)
        resized = resize(pixels, size, self.resampling)
        return [resized if self.crop is None else center_crop(resized, self.crop)], ()


@dataclass(frozen=True, slots=True)
class CanvasTiles:
    """An image becomes a small tile of all of it, then tiles of the canvas that fits it best
    (LLaVA-NeXT's "anyres"). `extra` is the height and width of the image.

    - `canvases`: the sizes of the canvases.
    - `base`: the size to which the whole image is resized.
    - `tile`: the size of the tiles.
    - `last`: how each tile is brought to its final size.
    """

    canvases: tuple[Size, ...]
    base: Size
    tile: Size
    resampling: int
    last: SingleTile

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """See Tiling."""
        height, width = pixels.shape[:2]
        canvas = best_canvas((height, width), self.canvases)
        tiles = [resize(pixels, self.base, self.resampling)]
        tiles += cut_tiles(fit_canvas(pixels, canvas, self.resampling), self.tile)
        return [self.last.tiles(tile)[0][0] for tile in tiles], (height, width)


@dataclass(frozen=True, slots=True)
class ProportionTiles:
    """An image is stretched over the grid of square tiles whose proportions are closest to its own;
    if the grid has several tiles, a tile with all of the image follows (InternVL).

    `grids`: (rows, columns) of the grids, by ascending number of tiles.
    """

    grids: tuple[tuple[int, int], ...]
    tile: Size
    resampling: int

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """See Tiling."""
        rows, columns = closest_grid(pixels, self.grids, self.tile)
        size = self.tile[0] * rows, self.tile[1] * columns
        tiles = cut_tiles(resize(pixels, size, self.resampling), self.tile)
        if len(tiles) > 1:
            tiles.append(resize(pixels, self.tile, self.resampling))
        return tiles, ()


def all_grids(fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    """Return (rows, columns) of all grids of `fewest` to `most` tiles, by ascending number of
    tiles, then of columns."""
    sides = range(1, most + 1)
    grids = [(r, c) for c in sides for r in sides if fewest <= r * c <= most]
    return tuple(sorted(grids, key=lambda grid: grid[0] * grid[1]))


def closest_grid(pixels: Pixels, grids: Sequence[tuple[int, int]], tile: Size) -> tuple[int, int]:
    """Return the grid whose proportions are closest to those of an image. Among equals, a later one
    is chosen if the image has more than half of its pixels."""
    height, width = pixels.shape[:2]
    best, least = (1, 1), float("inf")
    for rows, columns in grids:
        difference = abs(width / height - columns / rows)
        fills = width * height > 0.5 * tile[0] * tile[1] * rows * columns
        if difference < least or (difference == least and fills):
            best, least = (rows, columns), difference
    return best
