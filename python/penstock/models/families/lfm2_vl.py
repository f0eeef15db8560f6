"""LFM2-VL: SigLIP 2 over images of any proportions, large ones as tiles and a thumbnail; squares of
patches are normalized and projected by two linear layers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.image_mmproj import read_images
from penstock.models.configuration.media_config import (
    PROJECTOR_ROOTS,
    TOWER_ROOTS,
    activation_of,
    read_model_config,
    token_name,
    two_layers,
)
from penstock.models.configuration.mmproj import size
from penstock.models.configuration.vision_config import vision_of
from penstock.models.media.image_config import BILINEAR, ImageConfig, read_image_config
from penstock.models.media.image_processor import ImageProcessor, Part
from penstock.models.media.images import Size, cut_tiles, resize
from penstock.models.media.prepared import Pixels, PreparedMedia
from penstock.models.media.tiles import TileLayout
from penstock.models.media.tilings import closest_grid
from penstock.models.towers.image_tower import ImageTowerSpec
from penstock.models.towers.projector import ProjectorSpec
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile

START, END, THUMBNAIL = "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"
MOST_TILES: Final = 64


class Lfm2TextConfig(msgspec.Struct, frozen=True):
    """The key of `text_config` that the projector needs, with the default of transformers'
    Lfm2Config."""

    hidden_size: int = 2560


class Lfm2VlConfig(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' Lfm2VlConfig."""

    vision_config: dict[str, Any]
    text_config: Lfm2TextConfig = Lfm2TextConfig()
    image_token_id: int = 396
    projector_hidden_act: str = "gelu"
    projector_hidden_size: int = 2560
    projector_bias: bool = True
    projector_use_layernorm: bool = True
    downsample_factor: int = 2


class Lfm2VlImageConfig(ImageConfig):
    """The keys of the image processor, with the defaults of transformers' Lfm2VlImageProcessor."""

    resample: int = BILINEAR
    downsample_factor: int = 2
    do_image_splitting: bool = True
    min_tiles: int = 2
    max_tiles: int = 10
    use_thumbnail: bool = True
    min_image_tokens: int = 64
    max_image_tokens: int = 256
    encoder_patch_size: int = 16
    tile_size: int = 512
    max_pixels_tolerance: float = 2.0


@dataclass(frozen=True, slots=True)
class Lfm2Tiling:
    """An image of few pixels becomes one tile of nearly the same proportions; a larger one is
    stretched over the grid of square tiles with the closest proportions, and a thumbnail of nearly
    the same proportions follows. `extra`: rows and columns of tiles; (1, 1) for a single tile.

    - `unit`: the sides of tiles are multiples of this.
    - `fewest_pixels`, `most_pixels`: the pixels of a single tile.
    - `most_whole`: an image of more pixels is cut into tiles.
    - `grids`: (rows, columns) of the grids; empty: an image is never cut.
    - `side`: the side of a tile of a grid.
    """

    unit: int
    fewest_pixels: int
    most_pixels: int
    most_whole: float
    grids: tuple[tuple[int, int], ...]
    side: int
    has_thumbnail: bool
    resampling: int

    def tiles(self, pixels: Pixels) -> tuple[list[Pixels], tuple[int, ...]]:
        """See Tiling."""
        whole = resize(pixels, self._whole_size(pixels), self.resampling)
        height, width = (max(self._rounded(edge), self.unit // 2) for edge in pixels.shape[:2])
        if not self.grids or height * width <= self.most_whole:
            return [whole], (1, 1)
        rows, columns = closest_grid(pixels, self.grids, (self.side, self.side))
        stretched = resize(pixels, (self.side * rows, self.side * columns), self.resampling)
        tiles = cut_tiles(stretched, (self.side, self.side))
        if self.has_thumbnail and len(tiles) > 1:
            tiles.append(whole)
        return tiles, (rows, columns)

    def _whole_size(self, pixels: Pixels) -> Size:
        """Return the size of a single tile."""
        height, width = pixels.shape[:2]
        unit = self.unit
        size = max(unit, self._rounded(height)), max(unit, self._rounded(width))
        if size[0] * size[1] > self.most_pixels:
            beta = math.sqrt(height * width / self.most_pixels)
            return (
                max(unit, math.floor(height / beta / unit) * unit),
                max(unit, math.floor(width / beta / unit) * unit),
            )
        if size[0] * size[1] < self.fewest_pixels:
            beta = math.sqrt(self.fewest_pixels / (height * width))
            return math.ceil(height * beta / unit) * unit, math.ceil(width * beta / unit) * unit
        return size

    def _rounded(self, edge: int) -> int:
        return round(edge / self.unit) * self.unit


@dataclass(frozen=True, slots=True)
class Lfm2Rows:
    """The tokens of an image. `merge`: the patches on a side of the square that becomes one row."""

    merge: int

    def parts(self, media: PreparedMedia, layout: TileLayout) -> Iterable[Part]:
        """See Marking."""
        rows, columns = layout.extra
        yield START
        for number, (high, wide) in enumerate(layout.grids):
            if rows * columns > 1 and number < rows * columns:
                yield f"<|img_row_{number // columns + 1}_col_{number % columns + 1}|>"
            elif rows * columns > 1:
                yield THUMBNAIL
            yield math.ceil(high / self.merge) * math.ceil(wide / self.merge)
        yield END


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, _, where = read_model_config(folder, Lfm2VlConfig)
    images = read_image_config(folder, Lfm2VlImageConfig)
    vision = vision_of(config.vision_config, where, TOWER_ROOTS)
    merge = config.downsample_factor
    tiling = _tiling(images, str(folder))
    if images.encoder_patch_size != vision.patch or images.downsample_factor != merge:
        raise ModelError(
            f"{folder}: encoder_patch_size and downsample_factor must be {vision.patch} and"
            f" {merge}, as in config.json"
        )
    projector = ProjectorSpec(
        PROJECTOR_ROOTS,
        vision.spec.hidden_size,
        two_layers(
            config.projector_hidden_size,
            config.text_config.hidden_size,
            activation_of(config.projector_hidden_act, where),
            biased=config.projector_bias,
        ),
        merge=merge,
        norm="layer" if config.projector_use_layernorm else None,
        norm_name="layer_norm",
    )
    area = vision.patch**2
    tower = ImageTowerSpec(
        vision.spec,
        vision.names,
        projector,
        images.normalization(where),
        max(tiling.most_pixels, tiling.side**2) // area,
        images.max_tiles + 1,
        scheme=vision.scheme,
    )
    tower.check(where)
    token = token_name(folder, "image_token", "<image>")
    processor = ImageProcessor(token, config.image_token_id, vision.patch, tiling, Lfm2Rows(merge))
    return MediaSpec(processor, (tower,))


def _tiling(images: Lfm2VlImageConfig, where: str) -> Lfm2Tiling:
    unit = images.encoder_patch_size * images.downsample_factor
    fewest, most = images.min_tiles, images.max_tiles
    if unit < 1 or images.tile_size % unit or not 1 <= fewest <= most <= MOST_TILES:
        raise ModelError(
            f"{where}: tile_size must be a multiple of {unit} pixels, and min_tiles and max_tiles"
            f" must be in 1..{MOST_TILES}"
        )
    splits = images.do_image_splitting and most > 1
    most_pixels = images.max_image_tokens * unit**2
    return Lfm2Tiling(
        unit,
        images.min_image_tokens * unit**2,
        most_pixels,
        most_pixels * images.max_pixels_tolerance,
        _grids(fewest, most) if splits else (),
        images.tile_size,
        images.use_thumbnail,
        images.resample,
    )


def _grids(fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    """Return (rows, columns) of all grids, by ascending number of tiles. The order among equal
    numbers, which decides between equal proportions, is that of transformers' code."""
    pairs = {
        (wide, high)
        for count in range(fewest, most + 1)
        for wide in range(1, count + 1)
        for high in range(1, count + 1)
        if fewest <= wide * high <= most
    }
    ordered = sorted(pairs, key=lambda pair: pair[0] * pair[1])
    return tuple((high, wide) for wide, high in ordered)


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file. See MediaFamily."""
    read = read_images(file, "antialiased")
    merge = size(file, "projector.scale_factor", 2)
    images = Lfm2VlImageConfig(encoder_patch_size=read.sizes.patch, downsample_factor=merge)
    tiling = _tiling(images, read.where)
    norm = "mm.input_norm"
    projector = ProjectorSpec(
        ("",),
        read.spec.hidden_size,
        (read.layer("mm.1", "gelu"), read.layer("mm.2")),
        merge=merge,
        norm="layer" if f"{norm}.weight" in file.tensors else None,
        norm_name=norm,
    )
    most = max(tiling.most_pixels, tiling.side**2) // read.sizes.patch**2
    return read.media(projector, "<image>", tiling, Lfm2Rows(merge), most, images.max_tiles + 1)


FAMILY = Family(
    media=MediaFamily("Lfm2VlForConditionalGeneration", read_folder, ("lfm2",), read_mmproj)
)
