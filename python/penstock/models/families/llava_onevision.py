"""LLaVA-OneVision: LLaVA-NeXT with SigLIP, whose rows are shrunk if an image has many, and videos,
whose frames are shrunk to a quarter of their rows. Only an image that is alone in its prompt is cut
into tiles."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.configuration.media_config import TOWER_ROOTS, read_model_config, token_name
from penstock.models.configuration.vision_config import vision_of
from penstock.models.families.llava import LlavaConfig, single_tile
from penstock.models.families.llava_next import (
    LlavaNextImageConfig,
    anyres_rule,
    anyres_tower,
    canvas_tiling,
    read_canvases,
)
from penstock.models.media.anyres import AnyresRows
from penstock.models.media.frames import UniformFrames
from penstock.models.media.image_config import read_image_config
from penstock.models.media.image_processor import ImageProcessor
from penstock.models.media.images import Size, resize
from penstock.models.media.prepared import Frames, Pixels
from penstock.models.towers.anyres_arrangement import AnyresArrangement
from penstock.models.towers.tower import MediaSpec

_SIDES = range(384, 2304 + 1, 384)
ONEVISION_CANVASES = [(high, wide) for high in _SIDES for wide in _SIDES]
MOST_FRAMES = 32


class OnevisionConfig(LlavaConfig):
    """The keys of config.json, with the defaults of transformers' LlavaOnevisionConfig."""

    video_token_index: int | None = None
    video_token_id: int | None = None
    vision_feature_select_strategy: str = "full"
    vision_feature_layer: int | list[int] = -1
    vision_aspect_ratio: str = "anyres_max_9"
    image_grid_pinpoints: list[tuple[int, int]] | None = None

    @property
    def image_token(self) -> int:
        """The id of the token of an image row."""
        given = self.image_token_index if self.image_token_id is None else self.image_token_id
        return 151_646 if given is None else given

    @property
    def video_token(self) -> int:
        """The id of the token of a video row."""
        given = self.video_token_index if self.video_token_id is None else self.video_token_id
        return 151_647 if given is None else given


class OnevisionImageConfig(LlavaNextImageConfig):
    """The keys of the image processor, with the defaults of transformers'
    LlavaOnevisionImageProcessor."""

    size: dict[str, int] | int | None = 384
    crop_size: dict[str, int] | int | None = None
    do_center_crop: bool | None = None


@dataclass(frozen=True, slots=True)
class OnevisionFrames(UniformFrames):
    """The frames of a video, each stretched to `size`."""

    size: Size = (0, 0)
    resampling: int = 0

    def frame(self, pixels: Pixels) -> Pixels:
        """See VideoSampling."""
        return resize(pixels, self.size, self.resampling)

    def extra(self, frames: Frames) -> tuple[int, ...]:
        """See VideoSampling."""
        return ()


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, where = read_model_config(folder, OnevisionConfig)
    images = read_image_config(folder, OnevisionImageConfig)
    vision = vision_of(config.vision_config, where, TOWER_ROOTS)
    pinpoints = images.image_grid_pinpoints or config.image_grid_pinpoints
    canvases = read_canvases(pinpoints or ONEVISION_CANVASES, vision.side, where)
    most_tiles = _most_tiles(config.vision_aspect_ratio, where)
    rule = anyres_rule(canvases, vision.side, vision.patch, most_tiles)
    video_grid = math.ceil(rule.grid[0] / 2), math.ceil(rule.grid[1] / 2)
    tower = anyres_tower(config, keys, where, vision, images, rule)
    tower = replace(
        tower,
        kinds=frozenset({"image", "video"}),
        most_tiles=max(tower.most_tiles, MOST_FRAMES),
        arrangement=AnyresArrangement(rule, video_grid),
    )
    mean = images.normalization(where).mean
    background = (int(mean[0] * 255), int(mean[1] * 255), int(mean[2] * 255))
    processor = ImageProcessor(
        token_name(folder, "image_token", "<image>"),
        config.image_token,
        vision.patch,
        canvas_tiling(images, rule, where),
        AnyresRows(rule, video_grid),
        video_token=token_name(folder, "video_token", "<video>"),
        video_row_token=config.video_token,
        sampling=OnevisionFrames(MOST_FRAMES, 0.0, rule.tile, images.resample),
        beside=replace(single_tile(images, where), background=background),
    )
    return MediaSpec(processor, (tower,))


def _most_tiles(name: str, where: str) -> int:
    found = re.fullmatch(r"anyres_max_(\d+)", name)
    if found is None or int(found[1]) < 1:
        raise ModelError(f"{where}: vision_aspect_ratio must be anyres_max_N, not {name!r}")
    return int(found[1])


FAMILY = Family(media=MediaFamily("LlavaOnevisionForConditionalGeneration", read_folder))
