"""Pixtral's image processor: images keep their proportions, and each line of rows ends with a
token."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.errors import ModelError
from penstock.models.media.image_config import (
    BICUBIC,
    CLIP_MEAN,
    CLIP_STD,
    Channels,
    ImageConfig,
)
from penstock.models.media.image_processor import ImageProcessor, Part
from penstock.models.media.images import resize
from penstock.models.media.prepared import Pixels, PreparedMedia
from penstock.models.media.processor_files import read_processor_keys
from penstock.models.media.tiles import TileLayout


class PixtralConfig(ImageConfig):
    """The keys of the image processor, with the defaults of transformers' PixtralImageProcessor."""

    size: dict[str, int] | int | None = msgspec.field(
        default_factory=lambda: {"longest_edge": 1024}
    )
    image_mean: Channels | float = CLIP_MEAN
    image_std: Channels | float = CLIP_STD
    resample: int = BICUBIC

    def longest_edge(self, where: str) -> int:
        """Return the most pixels on a side. Raises ModelError naming the key `size`."""
        given = {"longest_edge": self.size} if isinstance(self.size, int) else self.size or {}
        edges = {given[key] for key in ("longest_edge", "height", "width") if given.get(key)}
        if len(edges) != 1 or not 1 <= min(edges) <= 1 << 14:
            raise ModelError(f"{where}: size must have one longest_edge, not {self.size}")
        return edges.pop()


@dataclass(frozen=True, slots=True)
class PixtralTiling:
    """An image is shrunk until no side is longer than `longest`, and stretched to whole squares of
    `unit` pixels."""

    longest: int
    unit: int
    resampling: int

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """See Tiling."""
        height, width = pixels.shape[:2]
        ratio = max(height / self.longest, width / self.longest)
        if ratio > 1:
            height, width = (max(math.floor(edge / ratio), 1) for edge in (height, width))
        unit = self.unit
        size = ((height - 1) // unit + 1) * unit, ((width - 1) // unit + 1) * unit
        return [resize(pixels, size, self.resampling)], ()


@dataclass(frozen=True, slots=True)
class LineRows:
    """The tokens of an image: after each line of rows a token, after the last another one.
    `merge`: the patches on a side of the square that becomes one row."""

    merge: int
    line_end: str
    image_end: str

    def parts(self, media: PreparedMedia, layout: TileLayout) -> Iterable[Part]:
        """See Marking."""
        ((high, wide),) = layout.grids
        lines, columns = high // self.merge, wide // self.merge
        for line in range(lines):
            yield columns
            yield self.line_end if line < lines - 1 else self.image_end


def pixtral_processor(
    folder: Path, config: PixtralConfig, row_token: int, patch: int, merge: int
) -> ImageProcessor:
    """Return the processor of a folder. `merge`: see LineRows. `row_token`: the id of the token of
    a row."""
    keys: dict[str, Any] = read_processor_keys(folder)

    def token(key: str, default: str) -> str:
        value = keys.get(key, default)
        return value if isinstance(value, str) else default

    return ImageProcessor(
        token("image_token", "[IMG]"),
        row_token,
        patch,
        PixtralTiling(config.longest_edge(str(folder)), patch * merge, config.resample),
        LineRows(
            merge, token("image_break_token", "[IMG_BREAK]"), token("image_end_token", "[IMG_END]")
        ),
    )
