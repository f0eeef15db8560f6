"""Converts 8-bit floats to bfloat16 for a CPU, and to float32 for `dtype="f32"`.

All codes of a block share a scale, and there are only 256 codes: the correctly rounded products are
computed once per scale and then looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, Float8
from penstock.quant.bfloat16 import float32_to_bfloat16

PIECE_CODES = 1 << 18  # numpy expands each code to a 64-bit index during the lookup


def _e4m3() -> npt.NDArray[np.float32]:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    magnitude = np.where(exponent > 0, normal, mantissa * 2.0**-9)
    magnitude[codes & 0x7F == 0x7F] = np.nan
    return np.where(codes < 128, magnitude, -magnitude).astype(np.float32)


def _e5m2() -> npt.NDArray[np.float32]:
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


E4M3 = _e4m3()
"""[256] float32: the value of each 8-bit code."""
E5M2 = _e5m2()
"""[256] float32: the value of each code of e5m2, the upper half of a float16. No kernel reads such
codes."""


LARGEST_BFLOAT16 = (2 - 2.0**-7) * 2.0**127


def largest_scale(values: npt.NDArray[np.float32]) -> float:
    """Return the largest scale whose products with all `values` of codes are finite in
    bfloat16."""
    return LARGEST_BFLOAT16 / float(values[np.isfinite(values)].max())


def powers_of_two(exponents: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Return the scales of biased exponents (e8m0). The exponent 255 is NaN."""
    biased = exponents.astype(np.int32)
    powers = np.ldexp(np.float32(1), np.minimum(biased, 254) - 127)
    scale: npt.NDArray[np.float32] = np.where(biased == 255, np.float32(np.nan), powers)
    return scale


def regroup_float8(matrix: Float8, group: int) -> Float8:
    """Return the same weights with blocks of `group` columns, whose scales are repeated. Blocks of
    whole rows are unchanged."""
    height, width = matrix.block
    columns = matrix.shape[1]
    if width in (group, columns):
        return matrix
    assert width % group == 0
    scale = np.repeat(matrix.scale, width // group, axis=1)[:, : -(-columns // group)]
    return Float8(matrix.codes, np.ascontiguousarray(scale), (height, group))


def float8_to_float32(matrix: Float8) -> npt.NDArray[np.float32]:
    """Convert a matrix to [N, C] float32. Each value is the correctly rounded product of its code
    and its scale."""
    out = np.empty(matrix.shape, np.float32)
    if _has_small_blocks(matrix):
        for rows, products in _products(matrix, E4M3):
            out[rows] = products
    else:
        _look_up(matrix, matrix.scale[..., None] * E4M3, out)
    return out


def transposed_float8(matrix: Float8) -> Float8:
    """Return the transposed matrix as views; the columns of a block become rows."""
    height, width = matrix.block
    return Float8(matrix.codes.T, matrix.scale.T, (width, height))


def float8_to_bfloat16(matrix: Float8, values: npt.NDArray[np.float32] = E4M3) -> Dense:
    """Convert a matrix to bfloat16, exactly if all scales are powers of two. Otherwise each value
    has a relative rounding error of up to 2^-9, with a thousandth of the variance of the error that
    the quantization to 8 bits made (up to 2^-4). `values`: [256], those of the codes."""
    out = np.empty(matrix.shape, np.uint16)
    if _has_small_blocks(matrix):
        for rows, products in _products(matrix, values):
            out[rows] = float32_to_bfloat16(products)
    else:
        tables = float32_to_bfloat16(np.ascontiguousarray(matrix.scale[..., None] * values))
        _look_up(matrix, tables, out)
    return Dense(out, "bf16")


def _has_small_blocks(matrix: Float8) -> bool:
    """Return whether blocks have fewer values than there are codes, so that looking up products
    that were computed once per block does not pay."""
    return matrix.block[0] * matrix.block[1] < len(E4M3)


def _products(
    matrix: Float8, values: npt.NDArray[np.float32]
) -> Iterator[tuple[slice, npt.NDArray[np.float32]]]:
    """Yield pieces of rows and their values in float32."""
    (height, width), (rows, columns) = matrix.block, matrix.shape
    step = max(PIECE_CODES // columns // height, 1) * height
    for start in range(0, rows, step):
        piece = slice(start, min(start + step, rows))
        scale = matrix.scale[start // height : -(-piece.stop // height)]
        spread = np.repeat(np.repeat(scale, height, axis=0), width, axis=1)
        products = values[matrix.codes[piece]]
        products *= spread[: piece.stop - start, :columns]
        yield piece, products


def _look_up(matrix: Float8, tables: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Look up all codes of `matrix` and write the results to `out` [N, C]. `tables` [..., 256]: one
    table per scale."""
    (height, width), (rows, columns) = matrix.block, matrix.shape
    step = max(PIECE_CODES // min(width, columns), 1)
    for block_row, block_column in np.ndindex(matrix.scale.shape):
        inside = slice(block_column * width, (block_column + 1) * width)
        end = min((block_row + 1) * height, rows)
        for start in range(block_row * height, end, step):
            piece = slice(start, min(start + step, end)), inside
            out[piece] = tables[block_row, block_column][matrix.codes[piece]]
