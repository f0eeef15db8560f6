"""The places of an image's rows if it was cut into the tiles of a canvas (LLaVA-NeXT's "anyres").

The rows of all tiles are put together as one grid, the rows of black borders are left out, and a
learned row ends each line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.models.media.image_processor import Part
from penstock.models.media.images import Size, best_canvas
from penstock.models.media.prepared import PreparedMedia
from penstock.models.media.tiles import Grid, TileLayout


@dataclass(frozen=True, slots=True)
class AnyresGrid:
    """The grid of the tiles' rows.

    - `whole`: (lines, columns) of rows of all tiles together.
    - `lines`, `columns`: (first, end) of those that are not black borders.
    - `shrunk`: the grid to which the rest is shrunk; None: it is not shrunk.
    """

    whole: Grid
    lines: tuple[int, int]
    columns: tuple[int, int]
    shrunk: Grid | None = None

    @property
    def final(self) -> Grid:
        """The grid of the item, without the rows that end its lines."""
        if self.shrunk is not None:
            return self.shrunk
        return self.lines[1] - self.lines[0], self.columns[1] - self.columns[0]


@dataclass(frozen=True, slots=True)
class AnyresRule:
    """The numbers that determine the grid.

    - `canvases`, `tile`: sizes in pixels.
    - `grid`: the rows of one tile.
    - `most_tiles`: an item with many more rows than this number of tiles has them shrunk; 0: no
      limit.
    """

    canvases: tuple[Size, ...]
    tile: Size
    grid: Grid
    most_tiles: int = 0

    @property
    def most_tiles_of_an_image(self) -> int:
        """The most tiles of an image, with that of the whole image."""
        high, wide = self.tile
        return 1 + max(height // high * (width // wide) for height, width in self.canvases)

    def of(self, size: Size) -> AnyresGrid:
        """Return the grid of an image of `size` pixels."""
        canvas = best_canvas(size, self.canvases)
        high = canvas[0] // self.tile[0] * self.grid[0]
        wide = canvas[1] // self.tile[1] * self.grid[1]
        height, width = size
        lines, columns = (0, high), (0, wide)
        if width / height > wide / high:
            lines = _middle(high, int(round(height * (wide / width), 7)))
        else:
            columns = _middle(wide, int(round(width * (high / height), 7)))
        rest = lines[1] - lines[0], columns[1] - columns[0]
        return AnyresGrid((high, wide), lines, columns, self._shrunk(rest))

    def _shrunk(self, rest: Grid) -> Grid | None:
        if not self.most_tiles:
            return None
        ratio = math.sqrt(rest[0] * rest[1] / (self.most_tiles * self.grid[0] ** 2))
        return (int(rest[0] // ratio), int(rest[1] // ratio)) if ratio > 1.1 else None


@dataclass(frozen=True, slots=True)
class AnyresRows:
    """The tokens of an image in tiles of a canvas. `video_grid`: the rows of a frame of a video,
    which ends with one learned row."""

    rule: AnyresRule
    video_grid: Grid = (0, 0)

    def parts(self, media: PreparedMedia, layout: TileLayout) -> Iterable[Part]:
        """See Marking."""
        if media.kind == "video":
            return (len(layout.grids) * self.video_grid[0] * self.video_grid[1] + 1,)
        base = self.rule.grid[0] * self.rule.grid[1]
        if len(layout.grids) == 1:  # an image beside others, which ends with one learned row
            return (base + 1,)
        high, wide = self.rule.of(image_size(layout.extra)).final
        return (base + high * (wide + 1),)


def image_size(extra: Sequence[int]) -> Size:
    """Return the (height, width) that `CanvasTiles` stored."""
    height, width = extra
    return height, width


def _middle(side: int, kept: int) -> tuple[int, int]:
    border = (side - kept) // 2
    return border, side - border
