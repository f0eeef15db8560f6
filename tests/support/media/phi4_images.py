"""The image processor of Phi-4-multimodal in plain torch. That of `transformers` needs torchvision;
for the sizes in the tests both give the same numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

SIDE, PATCH, MOST = 448, 14, 36


def prepared(image: np.ndarray) -> dict[str, Any]:
    """Return the inputs of transformers' model for an image [height, width, 3], and
    `num_img_tokens`."""
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    height, width = image.shape[:2]
    columns, rows = _grid(width, height)
    target = rows * SIDE, columns * SIDE
    scale = min(target[1] / width, target[0] / height)
    if target[1] / width < target[0] / height:
        size = int(height * scale), target[1]
    else:
        size = target[0], int(width * scale)
    if size != (height, width):
        pixels = functional.interpolate(pixels[None], size, mode="bilinear", antialias=True)[0]
    border = target[0] - size[0], target[1] - size[1]
    pixels = functional.pad(pixels, (0, border[1], 0, border[0]), value=255)
    shown = torch.ones(target[0] // PATCH, target[1] // PATCH)
    if border[1] >= PATCH:
        shown[:, -(border[1] // PATCH) :] = 0
    if border[0] >= PATCH:
        shown[-(border[0] // PATCH) :] = 0
    normal = (pixels / 255 - 0.5) / 0.5
    whole = functional.interpolate(normal[None], (SIDE, SIDE), mode="bicubic")
    kept = _tiles(shown[None], SIDE // PATCH)[:, 0, ::2, ::2]
    lines = int(kept.reshape(rows, columns, 16, 16)[:, 0, :, 0].sum())
    mask = torch.cat([torch.ones(1, 32, 32), _tiles(shown[None], SIDE // PATCH)[:, 0]])
    return {
        "image_pixel_values": torch.cat([whole, _tiles(normal, SIDE)])[None],
        "image_sizes": torch.tensor([target]),
        "image_attention_mask": mask[None],
        "num_img_tokens": 256 + 1 + int(kept.sum()) + lines + 16,
    }


def _grid(width: int, height: int) -> tuple[int, int]:
    """Return the columns and rows of tiles."""
    columns, rows = math.ceil(width / SIDE), math.ceil(height / SIDE)
    if columns * rows <= MOST:
        return columns, rows
    sides = range(1, MOST + 1)
    grids = [(wide, high) for wide in sides for high in sides if wide * high <= MOST]
    best, least = (1, 1), math.inf
    for wide, high in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = abs(width / height - wide / high)
        fills = width * height > 0.5 * SIDE * SIDE * wide * high
        if difference < least or (difference == least and fills):
            best, least = (wide, high), difference
    return best


def _tiles(pixels: torch.Tensor, side: int) -> torch.Tensor:
    """Cut [C, height, width] into tiles [tiles, C, side, side]."""
    channels, height, width = pixels.shape
    cut = pixels.reshape(channels, height // side, side, width // side, side)
    return cut.permute(1, 3, 0, 2, 4).reshape(-1, channels, side, side)
