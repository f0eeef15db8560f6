"""The sizes, frames and tokens of images and videos of Gemma 4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from penstock.models.media.image_processor import Part
from penstock.models.media.images import Size, refused_shape, resize
from penstock.models.media.prepared import Frames, Pixels, PreparedMedia
from penstock.models.media.tiles import TileLayout


@dataclass(frozen=True, slots=True)
class BudgetTiling:
    """An image keeps its proportions and gets nearly all tokens of a budget.

    - `unit`: the side of a token in pixels.
    - `tokens`: the most tokens of an image.
    """

    unit: int
    tokens: int
    resampling: int

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """See Tiling."""
        return [resize(pixels, self.size(pixels), self.resampling)], ()

    def size(self, pixels: Pixels) -> Size:
        """Return the size that an image gets. Raises InvalidRequest if it is much longer than
        wide."""
        height, width = pixels.shape[:2]
        grow = math.sqrt(self.tokens * self.unit**2 / (height * width))
        rows, columns = (math.floor(grow * edge / self.unit) for edge in (height, width))
        if rows == columns == 0:
            raise refused_shape(pixels)
        if rows == 0:
            rows, columns = 1, min(math.floor(width / height), self.tokens)
        elif columns == 0:
            rows, columns = min(math.floor(height / width), self.tokens), 1
        return rows * self.unit, columns * self.unit


@dataclass(frozen=True, slots=True)
class BudgetFrames:
    """The frames of a video: `most` that start equal parts of it, with the sizes of `tiling`."""

    most: int
    tiling: BudgetTiling

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        """See VideoSampling."""
        count = min(self.most, num_frames)
        if count < 1:
            return ()
        indices = (np.arange(count) * (num_frames / count)).astype(int)
        return [float(index) * duration_s / num_frames for index in indices]

    def frame(self, pixels: Pixels) -> Pixels:
        """See VideoSampling."""
        return resize(pixels, self.tiling.size(pixels), self.tiling.resampling)

    def extra(self, frames: Frames) -> tuple[int, ...]:
        """See VideoSampling."""
        return ()


@dataclass(frozen=True, slots=True)
class TimedRows:
    """The tokens of an image, or of the frames of a video after their times in minutes and seconds.

    - `merge`: the patches on a side of a token.
    - `start`, `end`: the texts around the rows.
    """

    merge: int
    start: str
    end: str

    def parts(self, media: PreparedMedia, layout: TileLayout) -> Iterable[Part]:
        """See Marking."""
        counts = [high * wide // self.merge**2 for high, wide in layout.grids]
        if media.kind == "image":
            yield from (self.start, counts[0], self.end)
            return
        gaps = ("", *(" " for _ in pairwise(counts)))
        for gap, count, seconds in zip(gaps, counts, media.timestamps, strict=True):
            yield f"{gap}{int(seconds // 60):02d}:{int(seconds % 60):02d} {self.start}"
            yield count
            yield self.end
