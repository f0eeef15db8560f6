"""Reads the media side of the Qwen-VL models from the files of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_processor import PixelKeys, pixel_bounds, pixel_keys
from penstock.models.media.qwen_pixels import DEFAULT_FPS, FrameSampling, QwenPixels
from penstock.models.media.resize import PixelRange
from penstock.models.towers.qwen_rows import QwenGrid
from penstock.models.towers.vision_spec import VisionActivation
from penstock.quant.json_file import read_json

MAX_FRAMES: Final = 768
MIN_FRAMES: Final = 4
MAX_SIDE: Final = 1 << 10

ROOTS: Final = ("model.visual.", "visual.")
_ACTIVATIONS: Final[Mapping[str, VisionActivation]] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}

K = TypeVar("K", bound="VisionKeys")


class VisionKeys(msgspec.Struct):
    """The keys of `vision_config` that all families have, with the defaults of transformers."""

    depth: int = 32
    num_heads: int = 16
    hidden_act: str = "quick_gelu"
    patch_size: int = 14
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    in_channels: int = 3
    rope_parameters: dict[str, Any] | None = None

    @property
    def rope_theta(self) -> float:
        """The base of the rotary angles."""
        return float((self.rope_parameters or {}).get("rope_theta") or 10_000.0)


@dataclass(frozen=True, slots=True)
class PixelDefaults:
    """The defaults of a family's processors in transformers.

    - `image`, `video`: the least and greatest number of pixels.
    - `mean`, `std`: the values by which pixels are normalized.
    - `budget`: whether `video` counts the pixels of a frame or of all frames.
    - `spread`: see FrameSampling.
    """

    image: tuple[int, int]
    video: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    budget: Literal["frame", "video"]
    spread: Literal["starts", "ends"]


@dataclass(frozen=True, slots=True)
class QwenMedia:
    """The pixels of a model's images and videos, and how they become patches."""

    pixels: QwenPixels
    sampling: FrameSampling
    grid: QwenGrid

    @property
    def most_patches(self) -> int:
        """The patches of the largest frame."""
        pixels = self.pixels
        shared = pixels.frames_per_patch if pixels.video_budget == "video" else 1
        most = max(pixels.image.greatest, pixels.video.greatest // shared)
        return most // pixels.patch**2


def vision_keys(folder: Path, kind: type[K]) -> tuple[K, str]:
    """Return the keys of `vision_config` in config.json, and the path of the file. Raises
    ModelError naming a key of a wrong type or value."""
    where = str(folder / "config.json")
    config = read_json(folder / "config.json", dict[str, Any])
    where = f"{where}: vision_config"
    try:
        keys = msgspec.convert(config.get("vision_config") or {}, kind)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None
    for name in ("patch_size", "spatial_merge_size", "temporal_patch_size", "num_heads"):
        if not 0 < getattr(keys, name) <= MAX_SIDE:
            raise ModelError(f"{where}: {name} is {getattr(keys, name)}")
    if keys.in_channels != 3:
        raise ModelError(f"{where}: in_channels is {keys.in_channels}, supported is 3")
    return keys, where


def plain_activation(keys: VisionKeys, where: str) -> VisionActivation:
    """Return the activation of a feed-forward without gate. Raises ModelError for an unknown
    one."""
    if keys.hidden_act not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ModelError(f"{where}: hidden_act {keys.hidden_act!r}, supported are {known}")
    return _ACTIVATIONS[keys.hidden_act]


def read_qwen_media(folder: Path, keys: VisionKeys, defaults: PixelDefaults) -> QwenMedia:
    """Read the processors' files, which must not contradict the tower's `keys`. Raises ModelError
    naming file and key."""
    image, where = pixel_keys(folder, "image_processor")
    video, video_where = pixel_keys(folder, "video_processor")
    sides = (keys.patch_size, keys.spatial_merge_size, keys.temporal_patch_size)
    _check_sides(image, sides, where)
    _check_sides(video, sides, video_where)
    mean, std = image.image_mean or defaults.mean, image.image_std or defaults.std
    _check_positive(std, f"{where}: image_std")
    media = default_qwen_media(keys, replace(defaults, mean=mean, std=std))
    pixels = replace(
        media.pixels,
        image=PixelRange(*pixel_bounds(image, defaults.image, where)),
        video=PixelRange(*pixel_bounds(video, defaults.video, video_where)),
    )
    sampling = replace(
        media.sampling,
        fps=video.fps or DEFAULT_FPS,
        least=video.min_frames or MIN_FRAMES,
        greatest=video.max_frames or MAX_FRAMES,
    )
    return replace(media, pixels=pixels, sampling=sampling)


def default_qwen_media(keys: VisionKeys, defaults: PixelDefaults) -> QwenMedia:
    """Return the media of a tower with `keys` without the processors' files."""
    sides = (keys.patch_size, keys.spatial_merge_size, keys.temporal_patch_size)
    return QwenMedia(
        QwenPixels(
            *sides, PixelRange(*defaults.image), PixelRange(*defaults.video), defaults.budget
        ),
        FrameSampling(DEFAULT_FPS, MIN_FRAMES, MAX_FRAMES, defaults.spread),
        QwenGrid(*sides, defaults.mean, defaults.std, keys.rope_theta),
    )


def _check_sides(keys: PixelKeys, sides: tuple[int, int, int], where: str) -> None:
    names = ("patch_size", "merge_size", "temporal_patch_size")
    given = (keys.patch_size, keys.merge_size, keys.temporal_patch_size)
    for name, value, wanted in zip(names, given, sides, strict=True):
        if value is not None and value != wanted:
            raise ModelError(f"{where}: {name} is {value}, but the vision tower has {wanted}")


def _check_positive(values: Sequence[float], where: str) -> None:
    if min(values) <= 0:
        raise ModelError(f"{where}: {values} must be above 0")
