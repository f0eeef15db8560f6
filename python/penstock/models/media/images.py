"""Operations on images with the pixels of transformers' processors: resizing with Pillow, padding,
cropping and division into tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from penstock.base.errors import InvalidRequest, ModelError
from penstock.models.media.prepared import Pixels

Size: TypeAlias = tuple[int, int]
"""(height, width) in pixels."""

MOST_PIXELS: Final = 1 << 26
"""The largest image that a processor makes, in pixels."""

RESAMPLINGS: Final = range(6)
"""Pillow's numbers of its filters: nearest, Lanczos, bilinear, bicubic, box, Hamming."""


def resize(pixels: Pixels, size: Size, resampling: int) -> Pixels:
    """Resize an image. `resampling`: see RESAMPLINGS. Raises InvalidRequest for a result of more
    than MOST_PIXELS pixels."""
    height, width = size
    if pixels.shape[:2] == (height, width):
        return pixels
    if height < 1 or width < 1 or height * width > MOST_PIXELS:
        raise refused_shape(pixels)
    image: Any = _pillow().fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((width, height), resample=resampling))


def refused_shape(pixels: Pixels) -> InvalidRequest:
    """Return the refusal of an image whose height and width differ too much."""
    height, width = pixels.shape[:2]
    return InvalidRequest(
        f"an image of {width} by {height} pixels has no size that the model takes",
        code="invalid_image",
    )


def center_crop(pixels: Pixels, size: Size) -> Pixels:
    """Cut the middle of an image to `size`. A smaller image is surrounded by black."""
    height, width = pixels.shape[:2]
    high, wide = size
    top, left = (height - high) // 2, (width - wide) // 2
    if top >= 0 and left >= 0:
        return pixels[top : top + high, left : left + wide]
    canvas = np.zeros((max(height, high), max(width, wide), 3), np.uint8)
    above, before = math.ceil(max(high - height, 0) / 2), math.ceil(max(wide - width, 0) / 2)
    canvas[above : above + height, before : before + width] = pixels
    top, left = top + above, left + before
    return canvas[max(top, 0) : top + high, max(left, 0) : left + wide]


def pad_to_square(pixels: Pixels, color: Sequence[int]) -> Pixels:
    """Place an image in the middle of a square of `color`."""
    height, width = pixels.shape[:2]
    side = max(height, width)
    canvas = np.empty((side, side, 3), np.uint8)
    canvas[:] = np.asarray(color, np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    canvas[top : top + height, left : left + width] = pixels
    return canvas


def cut_tiles(pixels: Pixels, tile: Size) -> list[Pixels]:
    """Divide an image whose sides are multiples of `tile` into tiles, row by row."""
    height, width = pixels.shape[:2]
    return [
        pixels[top : top + tile[0], left : left + tile[1]]
        for top in range(0, height, tile[0])
        for left in range(0, width, tile[1])
    ]


def shortest_edge_size(pixels: Pixels, shortest: int) -> Size:
    """Return the size with the same proportions whose shorter side is `shortest`. Raises
    InvalidRequest if the longer side becomes too long."""
    height, width = pixels.shape[:2]
    short, long = min(height, width), max(height, width)
    longest = int(shortest * long / short)
    if shortest * longest > MOST_PIXELS:
        raise refused_shape(pixels)
    return (longest, shortest) if width <= height else (shortest, longest)


def best_canvas(size: Size, canvases: Sequence[Size]) -> Size:
    """Return the canvas on which an image keeps most of its pixels, and of equal ones that which
    wastes least (LLaVA-NeXT's "anyres")."""
    height, width = size
    best, most, least = canvases[0], 0, math.inf
    for canvas in canvases:
        scale = min(canvas[1] / width, canvas[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        wasted = canvas[0] * canvas[1] - kept
        if kept > most or (kept == most and wasted < least):
            best, most, least = canvas, kept, wasted
    return best


def fit_canvas(pixels: Pixels, canvas: Size, resampling: int) -> Pixels:
    """Resize an image as large as it fits on a black canvas, in the middle."""
    height, width = pixels.shape[:2]
    by_width, by_height = canvas[1] / width, canvas[0] / height
    if by_width < by_height:
        size = min(math.ceil(height * by_width), canvas[0]), canvas[1]
    else:
        size = canvas[0], min(math.ceil(width * by_height), canvas[1])
    resized = resize(pixels, size, resampling)
    result = np.zeros((*canvas, 3), np.uint8)
    top, left = (canvas[0] - size[0]) // 2, (canvas[1] - size[1]) // 2
    result[top : top + size[0], left : left + size[1]] = resized
    return result


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ModelError("images need Pillow: pip install 'penstock[media]'") from None
    return Image
