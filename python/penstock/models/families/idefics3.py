"""Idefics 3: SigLIP over square tiles of an enlarged image and over the whole image; squares of
patches are projected by one linear layer. Each tile's tokens name its row and column."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.image_mmproj import read_images
from penstock.models.configuration.media_config import read_model_config, text_width
from penstock.models.configuration.mmproj import size
from penstock.models.configuration.vision_config import HfVision, vision_of
from penstock.models.media.image_config import (
    LANCZOS,
    ImageConfig,
    edge_of,
    read_image_config,
)
from penstock.models.media.image_processor import ImageProcessor, Part
from penstock.models.media.images import Size, cut_tiles, resize
from penstock.models.media.prepared import Pixels, PreparedMedia
from penstock.models.media.tiles import TileLayout
from penstock.models.towers.image_tower import ImageTowerSpec
from penstock.models.towers.projector import ProjectorLayer, ProjectorSpec
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile

LONGEST_SIDE = 4096
IMAGE, AROUND, GLOBAL = "<image>", "<fake_token_around_image>", "<global-img>"


class Idefics3Config(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' Idefics3Config."""

    vision_config: dict[str, Any]
    image_token_id: int = 128_257
    scale_factor: int = 2


class Idefics3ImageConfig(ImageConfig):
    """The keys of the image processor, with the defaults of transformers'
    Idefics3ImageProcessor."""

    size: dict[str, int] | int | None = msgspec.field(
        default_factory=lambda: {"longest_edge": 4 * 364}
    )
    max_image_size: dict[str, int] | int | None = msgspec.field(
        default_factory=lambda: {"longest_edge": 364}
    )
    resample: int = LANCZOS
    do_image_splitting: bool | None = True


@dataclass(frozen=True, slots=True)
class SplitTiling:
    """An image is enlarged or shrunk until its longer side is `longest`, then stretched to whole
    tiles of `tile` pixels. The tiles and the image shrunk to one tile follow. `extra`: rows and
    columns of tiles; (0, 0) for a single tile."""

    longest: int
    tile: int
    resampling: int

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """See Tiling."""
        pixels = resize(pixels, longest_size(pixels, self.longest), self.resampling)
        pixels = resize(pixels, self._whole_tiles(pixels), self.resampling)
        height, width = pixels.shape[:2]
        if max(height, width) <= self.tile:
            return [pixels], (0, 0)
        tiles = cut_tiles(pixels, (self.tile, self.tile))
        tiles.append(resize(pixels, (self.tile, self.tile), self.resampling))
        return tiles, (height // self.tile, width // self.tile)

    def _whole_tiles(self, pixels: Pixels) -> Size:
        height, width = pixels.shape[:2]
        tile, proportion = self.tile, width / height
        if width >= height:
            width = math.ceil(width / tile) * tile
            return math.ceil(int(width / proportion) / tile) * tile, width
        height = math.ceil(height / tile) * tile
        return height, math.ceil(int(height * proportion) / tile) * tile


@dataclass(frozen=True, slots=True)
class SquareTiling:
    """An image becomes one square tile: its longer side is brought to `longest`, then it is
    stretched to `tile` by `tile` pixels. `extra`: (0, 0)."""

    longest: int
    tile: int
    resampling: int

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """See Tiling."""
        pixels = resize(pixels, longest_size(pixels, self.longest), self.resampling)
        return [resize(pixels, (self.tile, self.tile), self.resampling)], (0, 0)


@dataclass(frozen=True, slots=True)
class SplitRows:
    """The tokens of an image. `rows`: the rows of one tile."""

    rows: int

    def parts(self, media: PreparedMedia, layout: TileLayout) -> Iterable[Part]:
        """See Marking."""
        high, wide = layout.extra[:2]
        for row in range(1, high + 1):
            for column in range(1, wide + 1):
                yield f"{AROUND}<row_{row}_col_{column}>"
                yield self.rows
            yield "\n"
        yield "\n" if high else ""
        yield from whole_image(self.rows)


def whole_image(rows: int) -> Iterable[Part]:
    """Yield the parts of an image in one tile."""
    yield f"{AROUND}{GLOBAL}"
    yield rows
    yield AROUND


def longest_size(pixels: Pixels, longest: int) -> Size:
    """Return the size with nearly the same proportions whose longer side is `longest`, and whose
    shorter side is even."""
    height, width = pixels.shape[:2]
    proportion = width / height
    if width >= height:
        high = int(longest / proportion)
        size = max(high + high % 2, 1), longest
    else:
        wide = int(longest * proportion)
        size = longest, max(wide + wide % 2, 1)
    return size


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, where = read_model_config(folder, Idefics3Config)
    images = read_image_config(folder, Idefics3ImageConfig)
    vision = vision_of(config.vision_config, where, ("model.vision_model.", "vision_model."))
    tile = tile_side(images, vision, str(folder))
    tower = idefics_tower(config, keys, where, vision, images, tile)
    tiling = image_tiling(images, tile, str(folder))
    rows = tower.projector.rows_of((tile // vision.patch, tile // vision.patch))
    processor = ImageProcessor(IMAGE, config.image_token_id, vision.patch, tiling, SplitRows(rows))
    return MediaSpec(processor, (tower,))


def idefics_tower(
    config: Idefics3Config,
    keys: dict[str, Any],
    where: str,
    vision: HfVision,
    images: Idefics3ImageConfig,
    tile: int,
) -> ImageTowerSpec:
    """Return the tower. `tile`: the side of a tile in pixels."""
    projector = ProjectorSpec(
        ("model.connector.", "connector."),
        vision.spec.hidden_size,
        (ProjectorLayer("modality_projection.proj", text_width(keys, where), bias=False),),
        merge=config.scale_factor,
    )
    side = tile // vision.patch
    if config.scale_factor < 1 or side % config.scale_factor:
        raise ModelError(
            f"{where}: scale_factor {config.scale_factor} must divide the {side} patches on a side"
            " of a tile"
        )
    longest = edge_of(images.size, "longest_edge", "size", where)
    tiles = math.ceil(min(longest, LONGEST_SIDE) / tile) ** 2 + 1
    tower = ImageTowerSpec(
        vision.spec,
        vision.names,
        projector,
        images.normalization(where),
        side**2,
        tiles if images.do_image_splitting else 1,
        scheme=vision.scheme,
    )
    tower.check(where)
    return tower


def image_tiling(images: Idefics3ImageConfig, tile: int, where: str) -> SplitTiling | SquareTiling:
    """Return how an image is cut into tiles."""
    longest = min(edge_of(images.size, "longest_edge", "size", where), LONGEST_SIDE)
    kind = SplitTiling if images.do_image_splitting else SquareTiling
    return kind(longest, tile, images.resample)


def tile_side(images: Idefics3ImageConfig, vision: HfVision, where: str) -> int:
    """Return the side of a tile in pixels. Raises ModelError if the tower cannot encode it."""
    tile = edge_of(images.max_image_size, "longest_edge", "max_image_size", where)
    if tile % vision.patch or tile > LONGEST_SIDE:
        raise ModelError(
            f"{where}: max_image_size {tile} must be a multiple of the patch of {vision.patch}"
            " pixels"
        )
    return tile


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file of Idefics 3 or SmolVLM. See MediaFamily."""
    read = read_images(file, "buckets")
    merge, tile = read.merge(2), read.sizes.image
    # Older files lack the key; published models have tiles of a quarter of the longest side.
    longest = min(size(file, "preproc_image_size", 4 * tile), LONGEST_SIDE)
    projector = ProjectorSpec(
        ("",), read.spec.hidden_size, (read.layer("mm.model.fc"),), merge=merge
    )
    rows = projector.rows_of((read.grid, read.grid))
    tiles = math.ceil(longest / tile) ** 2 + 1
    tiling = SplitTiling(longest, tile, LANCZOS)
    return read.media(projector, IMAGE, tiling, SplitRows(rows), read.grid**2, tiles)


FAMILY = Family(
    media=MediaFamily("Idefics3ForConditionalGeneration", read_folder, ("idefics3",), read_mmproj)
)
