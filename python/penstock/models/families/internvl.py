"""InternVL: a tower with a class token over tiles of 448 pixels and the whole image; squares of
patches are normalized and projected by two linear layers. Frames of videos are single tiles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
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
    text_width,
    token_name,
    two_layers,
)
from penstock.models.configuration.mmproj import size
from penstock.models.configuration.vision_config import HfVision, select_layers, vision_of
from penstock.models.media.frames import MiddleFrames
from penstock.models.media.image_config import (
    BICUBIC,
    CLIP_MEAN,
    CLIP_STD,
    Channels,
    ImageConfig,
    read_image_config,
    square_or_sides,
)
from penstock.models.media.image_processor import ImageProcessor, Part
from penstock.models.media.images import Size, resize
from penstock.models.media.prepared import Frames, Pixels, PreparedMedia
from penstock.models.media.tiles import TileLayout
from penstock.models.media.tilings import ProportionTiles, all_grids
from penstock.models.towers.image_tower import ImageTowerSpec
from penstock.models.towers.projector import ProjectorSpec
from penstock.models.towers.tower import MediaSpec
from penstock.models.towers.vision_spec import VisionSpec
from penstock.quant.gguf.gguf_file import GgufFile

MOST_FRAMES: Final = 32
MOST_TILES: Final = 64


class InternVlConfig(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' InternVLConfig."""

    vision_config: dict[str, Any]
    image_token_id: int = 151_667
    downsample_ratio: float = 0.5
    projector_hidden_act: str = "gelu"
    vision_feature_layer: int | list[int] = -1
    vision_feature_select_strategy: str = "default"


class InternVlImageConfig(ImageConfig):
    """The keys of the image processor, with the defaults of transformers' GotOcr2ImageProcessor.
    InternVL's processor always cuts images into tiles."""

    size: dict[str, int] | int | None = 384
    min_patches: int = 1
    max_patches: int = 12
    image_mean: Channels | float = CLIP_MEAN
    image_std: Channels | float = CLIP_STD
    resample: int = BICUBIC


@dataclass(frozen=True, slots=True)
class StretchedFrames(MiddleFrames):
    """The frames of a video, each stretched to `size`."""

    size: Size = (0, 0)
    resampling: int = 0

    def frame(self, pixels: Pixels) -> Pixels:
        """See VideoSampling."""
        return resize(pixels, self.size, self.resampling)

    def extra(self, frames: Frames) -> tuple[int, ...]:
        """See VideoSampling."""
        return ()


@dataclass(frozen=True, slots=True)
class TileRows:
    """The tokens of an image or video. `rows`: the rows of one tile. `start`, `end`: the texts
    around an image or frame."""

    rows: int
    start: str
    end: str

    def parts(self, media: PreparedMedia, layout: TileLayout) -> Iterable[Part]:
        """See Marking."""
        tiles = len(layout.grids)
        if media.kind == "image":
            yield self.start
            yield self.rows * tiles
            yield self.end
            return
        for number in range(1, tiles + 1):
            yield f"Frame{number}: {self.start}"
            yield self.rows
            yield self.end + ("\n" if number < tiles else "")


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, where = read_model_config(folder, InternVlConfig)
    images = read_image_config(folder, InternVlImageConfig)
    vision = vision_of(config.vision_config, where, TOWER_ROOTS)
    size = square_or_sides(images.size, "size", str(folder))
    if not 1 <= images.min_patches <= images.max_patches <= MOST_TILES:
        raise ModelError(
            f"{folder}: min_patches and max_patches must be in 1..{MOST_TILES}, not"
            f" {images.min_patches} and {images.max_patches}"
        )
    grid = size[0] // vision.patch, size[1] // vision.patch
    tower = _tower(config, keys, where, vision, images, grid)
    if grid[0] != grid[1] or grid[0] % tower.projector.merge:
        raise ModelError(f"{folder}: size {size} must be a square of whole squares of patches")
    marking = TileRows(
        tower.projector.rows_of(grid),
        token_name(folder, "start_image_token", "<img>"),
        token_name(folder, "end_image_token", "</img>"),
    )
    processor = ImageProcessor(
        token_name(folder, "context_image_token", "<IMG_CONTEXT>"),
        config.image_token_id,
        vision.patch,
        ProportionTiles(all_grids(images.min_patches, images.max_patches), size, images.resample),
        marking,
        video_token=token_name(folder, "video_token", "<video>"),
        video_row_token=config.image_token_id,
        sampling=StretchedFrames(MOST_FRAMES, size, images.resample),
    )
    return MediaSpec(processor, (tower,))


def _tower(
    config: InternVlConfig,
    keys: dict[str, Any],
    where: str,
    vision: HfVision,
    images: InternVlImageConfig,
    grid: tuple[int, int],
) -> ImageTowerSpec:
    spec, features = _layers(config, vision, where)
    merge = round(1 / config.downsample_ratio) if config.downsample_ratio > 0 else 0
    if merge < 1 or merge * config.downsample_ratio != 1:
        raise ModelError(f"{where}: downsample_ratio must be 1 / N, not {config.downsample_ratio}")
    if config.vision_feature_select_strategy != "default":
        raise ModelError(f"{where}: vision_feature_select_strategy must be default")
    width = text_width(keys, where)
    activation = activation_of(config.projector_hidden_act, where)
    projector = ProjectorSpec(
        PROJECTOR_ROOTS,
        spec.hidden_size * len(features),
        two_layers(width, width, activation, biased=True),
        merge=merge,
        norm="layer",
        norm_name="layer_norm",
    )
    tower = ImageTowerSpec(
        spec,
        vision.names,
        projector,
        images.normalization(where),
        grid[0] * grid[1],
        max(images.max_patches + 1, MOST_FRAMES),
        kinds=frozenset({"image", "video"}),
        scheme=vision.scheme,
        features=features,
    )
    tower.check(where)
    return tower


def _layers(
    config: InternVlConfig, vision: HfVision, where: str
) -> tuple[VisionSpec, tuple[int, ...]]:
    """Return the spec and the layers that are projected: the last one with the final norm if it is
    chosen by -1."""
    if config.vision_feature_layer == -1:
        return vision.spec, (vision.spec.layers - 1,)
    spec, features = select_layers(vision, config.vision_feature_layer, where)
    return replace(spec), features


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file. See MediaFamily."""
    read = read_images(file, "bicubic")
    merge, side = read.merge(2), read.sizes.image
    fewest = size(file, "preproc_min_tiles", InternVlImageConfig().min_patches)
    most = size(file, "preproc_max_tiles", InternVlImageConfig().max_patches)
    if not fewest <= most <= MOST_TILES:
        raise ModelError(f"{file.path}: clip.vision.preproc_max_tiles: {fewest} to {most} tiles")
    # The models are trained with the exact GELU.
    read = replace(read, spec=replace(read.spec, activation="gelu"))
    projector = ProjectorSpec(
        ("",),
        read.spec.hidden_size,
        (read.layer("mm.model.mlp.1", "gelu"), read.layer("mm.model.mlp.3")),
        merge=merge,
        norm="layer",
        norm_name="mm.model.mlp.0",
    )
    marking = TileRows(projector.rows_of((read.grid, read.grid)), "<img>", "</img>")
    tiling = ProportionTiles(all_grids(fewest, most), (side, side), BICUBIC)
    token = "<IMG_CONTEXT>"
    return read.media(projector, token, tiling, marking, read.grid**2, most + 1)


FAMILY = Family(
    media=MediaFamily("InternVLForConditionalGeneration", read_folder, ("internvl",), read_mmproj)
)
