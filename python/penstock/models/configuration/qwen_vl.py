"""Reads the sizes of images and videos from the files of a Qwen-VL model's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_processor import PixelKeys, pixel_bounds, pixel_keys
from penstock.models.media.qwen_pixels import DEFAULT_FPS, FrameSampling, QwenPixels
from penstock.models.media.resize import PixelRange

MAX_FRAMES = 768
MIN_FRAMES = 4


@dataclass(frozen=True, slots=True)
class PixelDefaults:
    """The defaults of a family's processors in transformers.

    - `image`, `video`: the least and greatest number of pixels.
    - `mean`, `std`: the values by which pixels are normalized.
    """

    image: tuple[int, int]
    video: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    budget: Literal["frame", "video"]
    spread: Literal["starts", "ends"]


@dataclass(frozen=True, slots=True)
class QwenMedia:
    """The pixels of a model's images and videos, and how they are normalized."""

    pixels: QwenPixels
    sampling: FrameSampling
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def read_qwen_media(
    folder: Path, tower: tuple[int, int, int], defaults: PixelDefaults
) -> QwenMedia:
    """Read the processors' files. `tower`: the sides of a patch and of a token, and the frames of a
    patch, which the files must not contradict. Raises ModelError naming file and key."""
    image, where = pixel_keys(folder, "image")
    video, video_where = pixel_keys(folder, "video")
    _check_tower(image, tower, where)
    _check_tower(video, tower, video_where)
    least, greatest = pixel_bounds(image, defaults.image, where)
    lowest, highest = pixel_bounds(video, defaults.video, video_where)
    pixels = QwenPixels(
        *tower, PixelRange(least, greatest), PixelRange(lowest, highest), defaults.budget
    )
    sampling = FrameSampling(
        video.fps or DEFAULT_FPS,
        video.min_frames or MIN_FRAMES,
        video.max_frames or MAX_FRAMES,
        defaults.spread,
    )
    mean, std = image.image_mean or defaults.mean, image.image_std or defaults.std
    _check_positive(std, f"{where}: image_std")
    return QwenMedia(pixels, sampling, mean, std)


def _check_tower(keys: PixelKeys, tower: tuple[int, int, int], where: str) -> None:
    names = ("patch_size", "merge_size", "temporal_patch_size")
    given = (keys.patch_size, keys.merge_size, keys.temporal_patch_size)
    for name, value, wanted in zip(names, given, tower, strict=True):
        if value is not None and value != wanted:
            raise ModelError(f"{where}: {name} is {value}, but the vision tower has {wanted}")


def _check_positive(values: Sequence[float], where: str) -> None:
    if min(values) <= 0:
        raise ModelError(f"{where}: {values} must be above 0")
