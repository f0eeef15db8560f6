"""Reads the keys of processors that resize images and videos to a range of pixels."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.models.media.processor_files import MediaPart, processor_part


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


def pixel_keys(folder: Path, part: MediaPart) -> tuple[PixelKeys, str]:
    """Return the keys of the folder's processor of images or videos, and the path of their file.
    Without any file, there are no keys. Raises ModelError naming a key of a wrong type."""
    keys, where = processor_part(folder, part)
    try:
        return msgspec.convert(keys or {}, PixelKeys), where
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
