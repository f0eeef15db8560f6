"""Cuts prepared pixels into the rows of patches that vision towers project."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def merged_patches(
    frames: npt.NDArray[Any], patch: int, merge: int, frames_per_patch: int
) -> npt.NDArray[Any]:
    """Return the patches of groups of `frames_per_patch` frames, with the `merge` x `merge` patches
    of a token next to each other: [groups * rows * columns, 3 * frames_per_patch * patch * patch]
    in the order channel, frame, row, column, as the weights of a 3-D convolution.

    `frames`: [N, height, width, 3]. A single frame is repeated.
    """
    if len(frames) < frames_per_patch:
        frames = np.repeat(frames, frames_per_patch, axis=0)
    count, height, width, channels = frames.shape
    tall, wide = height // (merge * patch), width // (merge * patch)
    cut = frames.reshape(
        count // frames_per_patch,
        frames_per_patch,
        tall,
        merge,
        patch,
        wide,
        merge,
        patch,
        channels,
    )
    rows = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return rows.reshape(-1, channels * frames_per_patch * patch * patch)


def merged_cells(groups: int, rows: int, columns: int, merge: int) -> npt.NDArray[np.int32]:
    """Return the row and column of each patch in the order of `merged_patches`: [N, 2]. `rows`,
    `columns`: patches of a frame."""
    row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    cells = np.stack([row, column], axis=-1).astype(np.int32)
    blocks = cells.reshape(rows // merge, merge, columns // merge, merge, 2)
    frame = blocks.transpose(0, 2, 1, 3, 4).reshape(-1, 2)
    return np.tile(frame, (groups, 1))
