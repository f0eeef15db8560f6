"""Reads the JSON files of a Hugging Face folder that describe its image and video processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from penstock.base.errors import ModelError
from penstock.models.media.image_config import VIDEO_FILE
from penstock.quant.json_file import read_json

PROCESSOR: Final = "processor_config.json"
IMAGE_PROCESSOR: Final = "preprocessor_config.json"


class PixelKeys(msgspec.Struct):
    """The keys of a processor that resizes to a range of pixels, as saved by transformers."""

    patch_size: int | None = None
    temporal_patch_size: int | None = None
    merge_size: int | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    size: dict[str, int | None] | None = None
    image_mean: tuple[float, float, float] | None = None
    image_std: tuple[float, float, float] | None = None
    fps: float | None = None
    min_frames: int | None = None
    max_frames: int | None = None


def processor_keys(folder: Path, kind: Literal["image", "video"]) -> tuple[dict[str, Any], str]:
    """Return the keys of a processor and the path of their file, which are in
    `processor_config.json` or a file of their own. Older models have one file for images and
    videos. Without any file, there are no keys."""
    path = folder / PROCESSOR
    if path.exists():
        own = read_json(path, dict[str, Any]).get(f"{kind}_processor")
        if isinstance(own, dict):
            return own, f"{path}: {kind}_processor"
    names = (IMAGE_PROCESSOR,) if kind == "image" else (VIDEO_FILE, IMAGE_PROCESSOR)
    for name in names:
        if (folder / name).exists():
            return read_json(folder / name, dict[str, Any]), str(folder / name)
    return {}, str(folder / names[0])


def pixel_keys(folder: Path, kind: Literal["image", "video"]) -> tuple[PixelKeys, str]:
    """Return the keys of the folder's processor of images or videos, and the path of their file.
    Raises ModelError naming a key of a wrong type."""
    keys, where = processor_keys(folder, kind)
    try:
        return msgspec.convert(keys, PixelKeys), where
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None


def pixel_bounds(keys: PixelKeys, default: tuple[int, int], where: str) -> tuple[int, int]:
    """Return the least and greatest number of pixels. Raises ModelError that starts with `where` if
    they are not positive or not in this order."""
    size = keys.size or {}
    least = keys.min_pixels or size.get("shortest_edge") or size.get("min_pixels") or default[0]
    greatest = keys.max_pixels or size.get("longest_edge") or size.get("max_pixels") or default[1]
    if not 0 < least <= greatest:
        raise ModelError(f"{where}: size: {least} to {greatest} pixels")
    return least, greatest
