"""8-bit floats as wider ones: what a CPU computes with, and what `dtype="f32"` means.

A scale belongs to a block of codes, and there are 256 codes: the products are made once for each
scale, correctly rounded, and looked up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, Float8

PIECE_CODES = 1 << 18  # numpy makes a 64-bit index of each code while it looks them up


def _e4m3() -> npt.NDArray[np.float32]:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    magnitude = np.where(exponent > 0, normal, mantissa * 2.0**-9)
    magnitude[codes & 0x7F == 0x7F] = np.nan
    return np.where(codes < 128, magnitude, -magnitude).astype(np.float32)


E4M3 = _e4m3()
"""[256] float32: what the codes mean."""


def float8_to_float32(matrix: Float8) -> npt.NDArray[np.float32]:
    """[N, K] float32, each value the correctly rounded product of its code and its scale."""
    out = np.empty(matrix.shape, np.float32)
    _look_up(matrix, matrix.scale[..., None] * E4M3, out)
    return out


def float8_to_bfloat16(matrix: Float8) -> Dense:
    """The matrix in bfloat16: exact where its scales are powers of two, else rounded by up to
    2^-9 of each value: a permille of the variance of what 8 bits, rounded by up to 2^-4, have lost
    already."""
    products = np.ascontiguousarray(matrix.scale[..., None] * E4M3).view(np.uint32)
    products += np.uint32(0x7FFF) + (products >> np.uint32(16) & np.uint32(1))
    out = np.empty(matrix.shape, np.uint16)
    _look_up(matrix, (products >> np.uint32(16)).astype(np.uint16), out)
    return Dense(out, "bf16")


def _look_up(matrix: Float8, tables: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Write what `tables` [..., 256], one for each scale, hold for the codes."""
    (height, width), (rows, columns) = matrix.block, matrix.shape
    step = max(PIECE_CODES // min(width, columns), 1)
    for block_row, block_column in np.ndindex(matrix.scale.shape):
        inside = slice(block_column * width, (block_column + 1) * width)
        end = min((block_row + 1) * height, rows)
        for start in range(block_row * height, end, step):
            piece = slice(start, min(start + step, end)), inside
            out[piece] = tables[block_row, block_column][matrix.codes[piece]]
