"""LLaVA-NeXT: LLaVA with a small tile of the whole image, then tiles of the canvas that fits the
image best. The rows of the tiles form one grid, whose lines end with a learned row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.image_mmproj import LearnedLines, read_images
from penstock.models.configuration.media_config import (
    TOWER_ROOTS,
    read_model_config,
    token_name,
)
from penstock.models.configuration.vision_config import HfVision, vision_of
from penstock.models.families import llava
from penstock.models.families.llava import (
    LlavaConfig,
    LlavaImageConfig,
    llava_tower,
    single_tile,
)
from penstock.models.media.anyres import AnyresRows, AnyresRule
from penstock.models.media.image_config import read_image_config, square_or_sides
from penstock.models.media.image_processor import ImageProcessor
from penstock.models.media.images import Size
from penstock.models.media.tilings import CanvasTiles
from penstock.models.towers.anyres_arrangement import AnyresArrangement
from penstock.models.towers.image_tower import ImageTowerSpec
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile

MOST_CANVASES = 256
NEXT_CANVASES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


class LlavaNextConfig(LlavaConfig):
    """The keys of config.json, with the defaults of transformers' LlavaNextConfig."""

    image_grid_pinpoints: list[tuple[int, int]] | None = None


class LlavaNextImageConfig(LlavaImageConfig):
    """The keys of the image processor, with the defaults of transformers'
    LlavaNextImageProcessor."""

    image_grid_pinpoints: list[tuple[int, int]] | None = None


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, where = read_model_config(folder, LlavaNextConfig)
    images = read_image_config(folder, LlavaNextImageConfig)
    vision = vision_of(config.vision_config, where, TOWER_ROOTS)
    pinpoints = images.image_grid_pinpoints or config.image_grid_pinpoints
    canvases = read_canvases(pinpoints or NEXT_CANVASES, vision.side, where)
    rule = anyres_rule(canvases, vision.side, vision.patch)
    tower = anyres_tower(config, keys, where, vision, images, rule)
    tower = replace(tower, arrangement=AnyresArrangement(rule))
    token = token_name(folder, "image_token", "<image>")
    tiling = canvas_tiling(images, rule, where)
    processor = ImageProcessor(token, config.image_token, vision.patch, tiling, AnyresRows(rule))
    return MediaSpec(processor, (tower,))


def anyres_tower(
    config: LlavaConfig,
    keys: Mapping[str, Any],
    where: str,
    vision: HfVision,
    images: LlavaImageConfig,
    rule: AnyresRule,
) -> ImageTowerSpec:
    """Return the tower of a model whose images are cut into tiles of a canvas."""
    side = vision.side // vision.patch
    tower = llava_tower(config, keys, where, vision, images.normalization(where), side)
    if tower.keeps_class_token:
        raise ModelError(f"{where}: vision_feature_select_strategy full keeps a class token")
    return replace(
        tower,
        most_tiles=rule.most_tiles_of_an_image,
        separator="image_newline",
        separator_roots=_ROOTS,
    )


def canvas_tiling(images: LlavaImageConfig, rule: AnyresRule, where: str) -> CanvasTiles:
    """Return how an image is cut into tiles of a canvas."""
    size = square_or_sides(images.size, "size", where)
    crop = images.crop_size
    tile = square_or_sides(crop, "crop_size", where) if crop is not None else size
    if tile != rule.tile:
        raise ModelError(f"{where}: tiles of {tile} pixels do not fit the tower's {rule.tile}")
    return CanvasTiles(rule.canvases, size, tile, images.resample, single_tile(images, where))


def read_canvases(
    pinpoints: list[tuple[int, int]] | list[list[int]], side: int, where: str
) -> tuple[Size, ...]:
    """Return the canvases, (height, width) each. `side`: pixels of a side of a tile. Raises
    ModelError for one that is not made of whole tiles."""
    canvases = tuple((height, width) for height, width in pinpoints)
    fits = all(side <= edge <= 64 * side and edge % side == 0 for size in canvases for edge in size)
    if not canvases or len(canvases) > MOST_CANVASES or not fits:
        raise ModelError(
            f"{where}: image_grid_pinpoints must be multiples of {side}, the side of the tower's"
            f" images, not {pinpoints}"
        )
    return canvases


def anyres_rule(
    canvases: tuple[Size, ...], side: int, patch: int, most_tiles: int = 0
) -> AnyresRule:
    """Return the rule for the grid of an image's rows. `side`, `patch`: pixels of a side of a tile
    and of a patch."""
    return AnyresRule(canvases, (side, side), (side // patch,) * 2, most_tiles)


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file of LLaVA-NeXT, or of LLaVA, whose files have the same
    projector. See MediaFamily."""
    merge = file.text(_MERGE, "flat")
    if merge == "flat":
        return llava.read_mmproj(file)
    if merge != "spatial_unpad":
        raise ModelError(f"{file.path}: {_MERGE} {merge} is not supported")
    read = read_images(file)
    side = read.sizes.image
    pinpoints = file.numbers("clip.vision.image_grid_pinpoints")
    if len(pinpoints) % 2:
        raise ModelError(f"{file.path}: clip.vision.image_grid_pinpoints must be pairs")
    sizes = [[int(high), int(wide)] for wide, high in pinpoints.reshape(-1, 2)] or NEXT_CANVASES
    rule = anyres_rule(read_canvases(sizes, side, read.where), side, read.sizes.patch)
    images = LlavaImageConfig(size={"shortest_edge": side}, crop_size=side)
    return read.media(
        llava.mmproj_projector(read),
        llava.MMPROJ_IMAGE,
        canvas_tiling(images, rule, read.where),
        AnyresRows(rule),
        read.grid**2,
        rule.most_tiles_of_an_image,
        lines=LearnedLines(AnyresArrangement(rule), "model.image_newline"),
    )


_MERGE = "clip.vision.mm_patch_merge_type"
_ROOTS = ("model.", "")
FAMILY = Family(
    media=MediaFamily("LlavaNextForConditionalGeneration", read_folder, ("mlp",), read_mmproj)
)
