"""Resizes images and frames to the sizes that vision towers take."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from penstock.base.errors import InvalidRequest
from penstock.models.media.prepared import Pixels

MAX_ASPECT_RATIO = 200


@dataclass(frozen=True, slots=True)
class PixelRange:
    """The least and the greatest number of pixels of an image, or of all frames of a video."""

    least: int
    greatest: int


def resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """Return the image resized by bicubic interpolation: [height, width, 3]."""
    from PIL import Image

    if pixels.shape[:2] == (height, width):
        return pixels
    resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(resized, np.uint8)


def check_aspect_ratio(height: int, width: int) -> None:
    """Raises InvalidRequest if one side is more than 200 times as long as the other."""
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise InvalidRequest(
            f"the image has {width} x {height} pixels; one side may be at most"
            f" {MAX_ASPECT_RATIO} times as long as the other",
            code="invalid_image",
        )


def fit_pixels(
    height: int, width: int, unit: int, allowed: PixelRange, frames: int = 1
) -> tuple[int, int]:
    """Return the height and width, multiples of `unit`, of an image of about the same shape with an
    allowed number of pixels. `frames`: the number of such images that share the pixels; a tower
    that takes them in pairs sees an even number."""
    tall, wide = round(height / unit) * unit, round(width / unit) * unit
    seen = round(frames / 2) * 2 if frames > 1 else 1
    if seen * tall * wide > allowed.greatest:
        shrink = math.sqrt(frames * height * width / allowed.greatest)
        tall = max(unit, math.floor(height / shrink / unit) * unit)
        wide = max(unit, math.floor(width / shrink / unit) * unit)
    elif seen * tall * wide < allowed.least:
        grow = math.sqrt(allowed.least / (frames * height * width))
        tall = math.ceil(height * grow / unit) * unit
        wide = math.ceil(width * grow / unit) * unit
    return tall, wide
