"""Convolutions over two dimensions of features with 3 x 3 taps and stride 2, as products."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

TAPS: Final = 3
_CONVOLUTIONS: Final = 3


def halved(length: int, times: int = _CONVOLUTIONS) -> int:
    """Return the length after convolutions with stride 2."""
    for _ in range(times):
        length = (length + 1) // 2
    return length


def taps_of(high: int, wide: int) -> Ints:
    """Return the inputs of each position of a convolution with stride 2, [positions, taps]: rows of
    [high * wide + 1, C], of which the last one is zero."""
    offsets = np.arange(TAPS) - 1
    rows = 2 * np.arange(halved(high, 1))[:, None] + offsets
    columns = 2 * np.arange(halved(wide, 1))[:, None] + offsets
    index = rows[:, None, :, None] * wide + columns[None, :, None, :]
    inside = ((rows >= 0) & (rows < high))[:, None, :, None]
    inside = inside & ((columns >= 0) & (columns < wide))[None, :, None, :]
    taps: Ints = np.where(inside, index, high * wide).reshape(-1, TAPS**2).astype(np.int32)
    return taps
