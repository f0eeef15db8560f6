"""Selects rows and columns of weights, and counts their bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.regroup import split_groups
from penstock.kernels.weights import Affine, Dense, Experts, Float8, FloatName, Linear, Matrix
from penstock.quant.bfloat16 import float32_to_bfloat16
from penstock.quant.dequantize import dequantize, fold_super_scales

SUPER_GROUP = 256
"""The number of columns that share a super scale."""

ACTIVATION_GROUP = 32
"""The number of columns whose activations share a scale in products with integer weights."""


def take_rows(matrix: Matrix, rows: npt.NDArray[np.intp]) -> Matrix:
    """Return a matrix whose row n is row `rows[n]` of `matrix`. This is exact in every layout,
    because groups do not extend across rows."""
    if isinstance(matrix, Dense):
        return Dense(matrix.data[rows], matrix.dtype)
    if isinstance(matrix, Float8):
        height, width = matrix.block
        return Float8(matrix.codes[rows], matrix.scale[rows // height], (1, width))
    return _of_rows(matrix, lambda array: array[rows])


def linear_rows(linear: Linear, rows: npt.NDArray[np.intp]) -> Linear:
    """Return some rows of a linear layer of one matrix, each as from `take_rows`."""
    (matrix,) = linear.parts
    bias = None if linear.bias is None else linear.bias[rows]
    return replace(linear, parts=(take_rows(matrix, rows),), bias=bias)


def row_range(matrix: Matrix, rows: slice) -> Matrix:
    """Return consecutive rows of `matrix`, as views if possible. Blocks of 8-bit floats keep their
    size if the first row starts a block or all rows are in one block; otherwise each row is given
    its own scale."""
    assert rows.step is None and 0 <= rows.start <= rows.stop <= matrix.shape[0]
    if isinstance(matrix, Dense):
        return Dense(matrix.data[rows], matrix.dtype)
    if isinstance(matrix, Float8):
        height, width = matrix.block
        first, last = rows.start // height, (rows.stop - 1) // height
        if rows.start % height == 0 or first == last:
            scale = matrix.scale[first : last + 1]
            return Float8(matrix.codes[rows], scale, (min(height, max(_length(rows), 1)), width))
        return take_rows(matrix, np.arange(rows.start, rows.stop))
    return _of_rows(matrix, lambda array: array[rows])


def split_rows(matrix: Matrix, sizes: Sequence[int]) -> tuple[Matrix, ...]:
    """Split `matrix` into consecutive parts of `sizes` rows, each as from `row_range`."""
    if len(sizes) == 1:
        return (matrix,)
    ends = list(itertools.accumulate(sizes))
    assert ends[-1] == matrix.shape[0]
    firsts = [0, *ends[:-1]]
    return tuple(row_range(matrix, slice(*part)) for part in zip(firsts, ends, strict=True))


def pad_rows(matrix: Matrix, num_rows: int) -> Matrix:
    """Append rows of zeros to `matrix` until it has `num_rows` rows."""
    missing = num_rows - matrix.shape[0]
    if missing == 0:
        return matrix
    if isinstance(matrix, Dense):
        return Dense(_padded(matrix.data, missing), matrix.dtype)
    if isinstance(matrix, Float8):
        scales = -(-num_rows // matrix.block[0]) - len(matrix.scale)
        codes = _padded(matrix.codes, missing)
        return Float8(codes, _padded(matrix.scale, scales), matrix.block)
    return _of_rows(matrix, lambda array: _padded(array, missing))


def column_step(matrix: Matrix) -> int:
    """Return the step of the column ranges that can be taken exactly: a range must start at a
    multiple of the step and end at a multiple or at the last column. Products with such a range are
    partial sums of the whole product."""
    if isinstance(matrix, Affine):
        return ACTIVATION_GROUP
    if isinstance(matrix, Float8) and matrix.block[1] < matrix.shape[1]:
        return int(matrix.block[1])
    return 1


def take_columns(matrix: Matrix, columns: slice) -> Matrix:
    """Return a copy of consecutive columns of `matrix`. The range must be valid for `column_step`.
    If the range cuts a group of a super scale, the two levels of scales are multiplied, which is
    exact. If it cuts a large group, the group's scale is repeated."""
    width, step = matrix.shape[1], column_step(matrix)
    assert columns.step is None and 0 <= columns.start < columns.stop <= width
    assert columns.start % step == 0 and (columns.stop % step == 0 or columns.stop == width)
    if isinstance(matrix, Dense):
        return Dense(_part(matrix.data, columns), matrix.dtype)
    if isinstance(matrix, Float8):
        height, group = matrix.block[0], min(matrix.block[1], width)
        block = height, group if group < width else _length(columns)
        return Float8(_part(matrix.codes, columns), _part(matrix.scale, columns, group), block)
    if columns.start % SUPER_GROUP or (columns.stop % SUPER_GROUP and columns.stop < width):
        matrix = fold_super_scales(matrix)
    matrix = split_groups(matrix, math.gcd(matrix.group, columns.start))
    return replace(
        matrix,
        q=_part(matrix.q, columns, 8 // matrix.bits),
        scale=_part(matrix.scale, columns, matrix.group),
        minimum=_part_of(matrix.minimum, columns, matrix.group),
        super_scale=_part_of(matrix.super_scale, columns, SUPER_GROUP),
        super_minimum=_part_of(matrix.super_minimum, columns, SUPER_GROUP),
    )


def take_column_blocks(matrix: Matrix, order: npt.NDArray[np.intp], width: int) -> Matrix:
    """Return a matrix whose block n of `width` columns is block `order[n]` of `matrix`. Both levels
    of scales are multiplied, and a group that is cut is split, which is exact. A layout whose
    groups cannot be cut there becomes float32."""
    columns = matrix.shape[1]
    assert columns == len(order) * width
    if isinstance(matrix, Affine):
        if width % ACTIVATION_GROUP or columns % ACTIVATION_GROUP:
            return take_column_blocks(Dense(dequantize(matrix), "f32"), order, width)
        matrix = fold_super_scales(matrix)
        matrix = split_groups(matrix, math.gcd(matrix.group, width))
        minimum, per = matrix.minimum, width // matrix.group
        return replace(
            matrix,
            q=_blocks(matrix.q, order, width * matrix.bits // 8),
            scale=_blocks(matrix.scale, order, per),
            minimum=None if minimum is None else _blocks(minimum, order, per),
        )
    if isinstance(matrix, Float8):
        height, group = matrix.block
        if group < columns and width % group:
            return take_column_blocks(Dense(dequantize(matrix), "f32"), order, width)
        scale = matrix.scale if group >= columns else _blocks(matrix.scale, order, width // group)
        return Float8(_blocks(matrix.codes, order, width), scale, (height, group))
    return Dense(_blocks(matrix.data, order, width), matrix.dtype)


def _blocks(array: Any, order: npt.NDArray[np.intp], width: int) -> Any:
    """Return the blocks of `width` columns of an array in another order."""
    rows = array.shape[0]
    return np.ascontiguousarray(array.reshape(rows, -1, width)[:, order]).reshape(rows, -1)


def scaled(matrix: Matrix, factor: float) -> Matrix:
    """Return `matrix` times `factor`. Floats keep their type, so that products are rounded to it;
    scales of quantized weights become float32."""
    if factor == 1.0:
        return matrix
    if isinstance(matrix, Dense):
        return _rounded(dequantize(matrix) * np.float32(factor), matrix.dtype)
    if isinstance(matrix, Float8):
        return replace(matrix, scale=matrix.scale * np.float32(factor))
    matrix = fold_super_scales(matrix)
    minimum = matrix.minimum
    return replace(
        matrix,
        scale=matrix.scale.astype(np.float32) * np.float32(factor),
        minimum=None if minimum is None else minimum.astype(np.float32) * np.float32(factor),
    )


def _rounded(values: npt.NDArray[np.float32], dtype: FloatName) -> Dense:
    if dtype == "bf16":
        return Dense(float32_to_bfloat16(values), dtype)
    return Dense(values.astype(np.float16 if dtype == "f16" else np.float32), dtype)


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _of_rows(matrix: Affine, take: Callable[[Any], Any]) -> Affine:
    """Apply `take` to each array of `matrix`. The first dimension of each array is the rows."""
    return replace(
        matrix,
        q=take(matrix.q),
        scale=take(matrix.scale),
        minimum=None if matrix.minimum is None else take(matrix.minimum),
        super_scale=None if matrix.super_scale is None else take(matrix.super_scale),
        super_minimum=None if matrix.super_minimum is None else take(matrix.super_minimum),
    )


def _padded(array: Any, missing: int) -> Any:
    return np.pad(array, ((0, missing), (0, 0)))


def _part(array: Any, columns: slice, group: int = 1) -> Any:
    """Return the entries of `columns` in an array [N, C / group]."""
    return np.ascontiguousarray(array[:, columns.start // group : -(-columns.stop // group)])


def _part_of(array: Any, columns: slice, group: int) -> Any:
    return None if array is None else _part(array, columns, group)


def size_bytes(matrix: Matrix) -> int:
    """Return the total bytes of the arrays of a weight."""
    return sum(array.nbytes for array in _arrays(matrix))


def linear_bytes(linear: Linear) -> int:
    """Return the total bytes of the arrays of a linear layer."""
    bias = 0 if linear.bias is None else linear.bias.nbytes
    return bias + sum(map(size_bytes, linear.parts))


def expert_bytes(experts: Experts) -> int:
    """Return the total bytes of the arrays of all experts of a layer."""
    biases = (experts.gate_up_bias, experts.down_bias)
    held = sum(int(bias.nbytes) for bias in biases if bias is not None)
    return held + sum(map(size_bytes, experts.gate + experts.up + experts.down))


def _arrays(matrix: Matrix) -> list[npt.NDArray[np.generic]]:
    if isinstance(matrix, Dense):
        return [matrix.data]
    if isinstance(matrix, Float8):
        return [matrix.codes, matrix.scale]
    optional = (matrix.minimum, matrix.super_scale, matrix.super_minimum)
    return [matrix.q, matrix.scale, *(array for array in optional if array is not None)]
