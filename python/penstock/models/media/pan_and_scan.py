"""Pan and scan (Gemma 3): a long image is followed by crops of its parts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.models.media.image_processor import Part, PlainRows
from penstock.models.media.prepared import Pixels, PreparedMedia
from penstock.models.media.tiles import TileLayout
from penstock.models.media.tilings import SingleTile


@dataclass(frozen=True, slots=True)
class PanAndScan:
    """An image becomes a tile; if it is long, crops along its longer side become tiles too.

    - `single`: makes a tile of an image or crop.
    - `least`: the least side of a crop in pixels.
    - `most`: the most crops of an image, at most `least`.
    - `ratio`: the least ratio of the sides of an image with crops.
    """

    single: SingleTile
    least: int
    most: int
    ratio: float

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """See Tiling."""
        shown = [pixels, *self._crops(pixels)]
        return [self.single.tiles(one)[0][0] for one in shown], ()

    def _crops(self, pixels: Pixels) -> list[Pixels]:
        height, width = pixels.shape[:2]
        short, long = sorted((height, width))
        if long / short < self.ratio:
            return []
        count = min(math.floor(long / short + 0.5), long // self.least)
        count = min(max(count, 2), self.most)
        size = math.ceil(long / count)
        if min(size, short) < self.least:
            return []
        parts = [slice(size * index, size * (index + 1)) for index in range(count)]
        return [pixels[:, part] if width >= height else pixels[part] for part in parts]


@dataclass(frozen=True, slots=True)
class CroppedRows:
    """The tokens of an image, and those of its crops after a text that introduces them. `plain`:
    the tokens of one tile."""

    plain: PlainRows

    def parts(self, media: PreparedMedia, layout: TileLayout) -> Iterable[Part]:
        """See Marking."""
        whole, *crops = (self.plain.parts(media, TileLayout((grid,))) for grid in layout.grids)
        if not crops:
            yield from whole
            return
        yield "Here is the original image "
        yield from whole
        yield " and here are some crops to help you see better "
        for number, crop in enumerate(crops):
            yield " " if number else ""
            yield from crop
