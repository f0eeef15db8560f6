"""Reads the processors of Gemma 4 and Gemma 4 Unified."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.image_mmproj import ROW_TOKEN
from penstock.models.configuration.media_config import token_name
from penstock.models.decoder.spec_limits import MAX_WIDTH
from penstock.models.media.gemma4_images import BudgetFrames, BudgetTiling, TimedRows
from penstock.models.media.image_config import (
    BICUBIC,
    Channels,
    ImageConfig,
    read_image_config,
    read_video_config,
)
from penstock.models.media.image_processor import ImageProcessor
from penstock.models.media.processor_files import has_video_config
from penstock.models.media.tiles import Normalization

START, END, IMAGE, VIDEO = "<|image>", "<image|>", "<|image|>", "<|video|>"
BUDGETS: Final = (70, 140, 280, 560, 1120)
IMAGE_TOKENS: Final = 280
VIDEO_TOKENS: Final = 70
FRAMES: Final = 32
TEXT_WIDTH: Final = 2304
MOST_FRAMES: Final = 1 << 10


class MediaConfig(msgspec.Struct):
    """The keys of a multimodal config.json, with the defaults of transformers' Gemma4Config."""

    vision_config: dict[str, Any]
    text_config: dict[str, Any]
    image_token_id: int = 258_880
    video_token_id: int = 258_884

    def width(self, where: str) -> int:
        """Return the width of the language model. Raises ModelError that starts with `where`."""
        width = self.text_config.get("hidden_size", TEXT_WIDTH)
        if not isinstance(width, int) or not 1 <= width <= MAX_WIDTH:
            raise ModelError(f"{where}: text_config: hidden_size is {width!r}")
        return width

    def is_whole(self) -> bool:
        """Return whether the tokens of an image attend to each other in both directions."""
        return self.text_config.get("use_bidirectional_attention") == "vision"


class Gemma4ImageConfig(ImageConfig):
    """The keys of the image processor, with the defaults of transformers'
    Gemma4ImageProcessor."""

    image_mean: Channels | float = (0.0, 0.0, 0.0)
    image_std: Channels | float = (1.0, 1.0, 1.0)
    do_normalize: bool | None = False
    resample: int = BICUBIC
    patch_size: int = 16
    pooling_kernel_size: int = 3
    max_soft_tokens: int = IMAGE_TOKENS

    def normalization(self, where: str) -> Normalization:
        """Return the normalization, which only scales pixels to 0..1."""
        if self.do_normalize and (self.image_mean, self.image_std) != ((0.0,) * 3, (1.0,) * 3):
            raise ModelError(f"{where}: do_normalize true is not supported")
        return Normalization((0.0,) * 3, (1.0,) * 3, self.rescale_factor)


class Gemma4VideoConfig(Gemma4ImageConfig):
    """The keys of the video processor, with the defaults of transformers'
    Gemma4VideoProcessor."""

    do_normalize: bool | None = True
    max_soft_tokens: int = VIDEO_TOKENS
    num_frames: int = FRAMES


def gemma4_processor(
    folder: Path, config: MediaConfig, patch: int, pooling: int, unit: Literal["patches", "tokens"]
) -> ImageProcessor:
    """Return the processor. `patch`, `pooling`: pixels of a side of a patch of the tower, and
    patches of a side of a token. `unit`: whether the tower takes patches or whole tokens. Raises
    ModelError naming file and key."""
    images = read_image_config(folder, Gemma4ImageConfig)
    videos = Gemma4VideoConfig()
    if has_video_config(folder):
        videos = read_video_config(folder, Gemma4VideoConfig)
    where = str(folder)
    for given in (images, videos):
        given.normalization(where)
        if given.max_soft_tokens not in BUDGETS:
            raise ModelError(
                f"{where}: max_soft_tokens {given.max_soft_tokens} is none of {BUDGETS}"
            )
        if (given.patch_size, given.pooling_kernel_size) != (patch, pooling):
            raise ModelError(
                f"{where}: patch_size and pooling_kernel_size must be {patch} and {pooling}, as in"
                " config.json"
            )
    if not 1 <= videos.num_frames <= MOST_FRAMES:
        raise ModelError(f"{where}: num_frames {videos.num_frames} is not in 1..{MOST_FRAMES}")
    side = patch * pooling
    frames = BudgetTiling(side, videos.max_soft_tokens, videos.resample)
    return ImageProcessor(
        token_name(folder, "image_token", IMAGE),
        config.image_token_id,
        patch if unit == "patches" else side,
        BudgetTiling(side, images.max_soft_tokens, images.resample),
        TimedRows(
            pooling if unit == "patches" else 1,
            token_name(folder, "boi_token", START),
            token_name(folder, "eoi_token", END),
        ),
        whole=config.is_whole(),
        video_token=VIDEO,
        video_row_token=config.video_token_id,
        sampling=BudgetFrames(videos.num_frames, frames),
    )


def published_processor(
    patch: int, pooling: int, unit: Literal["patches", "tokens"]
) -> ImageProcessor:
    """Return the processor of the published models, for files that do not describe theirs. The rows
    of an image attend to each other. The arguments: see `gemma4_processor`."""
    side = patch * pooling
    tiling = BudgetTiling(side, IMAGE_TOKENS, BICUBIC)
    return ImageProcessor(
        IMAGE,
        ROW_TOKEN,
        patch if unit == "patches" else side,
        tiling,
        TimedRows(pooling if unit == "patches" else 1, START, END),
        whole=True,
        video_token=VIDEO,
        video_row_token=ROW_TOKEN,
        sampling=BudgetFrames(FRAMES, BudgetTiling(side, VIDEO_TOKENS, BICUBIC)),
    )
