"""Convolutions over two dimensions of features with 3 x 3 taps and stride 2, as products."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Dense, Linear
from penstock.models.towers.tower_weights import TowerTensors
from penstock.quant.dequantize import dequantize

Ints = npt.NDArray[np.int32]

TAPS: Final = 3
_CONVOLUTIONS: Final = 3


def halved(length: int, times: int = _CONVOLUTIONS) -> int:
    """Return the length after convolutions with stride 2."""
    for _ in range(times):
        length = (length + 1) // 2
    return length


def taps_of(high: int, wide: int, first: int = -1) -> Ints:
    """Return the inputs of each position of a convolution with stride 2, [positions, taps]: rows of
    [high * wide + 1, C], of which the last one is zero. `first`: the
    row of the first taps, relative to twice the row of the position; -1: the middle taps are
    there."""
    offsets = np.arange(TAPS) - 1
    rows = 2 * np.arange(halved(high, 1))[:, None] + first + np.arange(TAPS)
    columns = 2 * np.arange(halved(wide, 1))[:, None] + offsets
    index = rows[:, None, :, None] * wide + columns[None, :, None, :]
    inside = ((rows >= 0) & (rows < high))[:, None, :, None]
    inside = inside & ((columns >= 0) & (columns < wide))[None, :, None, :]
    taps: Ints = np.where(inside, index, high * wide).reshape(-1, TAPS**2).astype(np.int32)
    return taps


def packed_taps(tensors: TowerTensors, ops: Ops[Any], name: str) -> Any:
    """Return a convolution packed as a linear layer over the taps: [C, I, taps] becomes [C, taps *
    I], with the columns padded to a multiple of 16."""
    stored = dequantize(tensors.flattened(name))
    weight = stored.reshape(len(stored), -1, TAPS**2).swapaxes(1, 2).reshape(len(stored), -1)
    weight = np.pad(weight, ((0, 0), (0, -weight.shape[1] % 16)))
    return ops.pack_linear(Linear((Dense(np.ascontiguousarray(weight, np.float32), "f32"),), None))
