"""Dequantizes weights to float32, for `dtype="f32"` and as a reference in tests."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.kernels.regroup import split_groups
from penstock.kernels.weights import Affine, Dense, Float8, Matrix
from penstock.quant.bfloat16 import bfloat16_to_float32
from penstock.quant.float8 import float8_to_float32

Floats = npt.NDArray[np.float32]


def dequantize(matrix: Matrix) -> Floats:
    """Dequantize a matrix to [N, C] float32, correctly rounded for every format that `quant` reads.

    scale * q has at most 24 significant bits, so only the addition of the minimum rounds. If scales
    and minima are float32, the arithmetic is float64. A float32 Dense is returned unchanged.
    """
    if isinstance(matrix, Dense):
        return _widen(matrix)
    if isinstance(matrix, Float8):
        return float8_to_float32(matrix)
    rows, columns = matrix.shape
    matrix = split_groups(matrix, math.gcd(matrix.group, columns))
    wide = matrix.minimum is not None and matrix.scale.dtype == np.float32
    values = _unpack(matrix).astype(np.float64 if wide else np.float32)
    values = values.reshape(rows, -1, matrix.group)
    if matrix.minimum is None:
        values -= np.float32(matrix.zero_point)
    values *= _level(matrix.scale, matrix.super_scale, matrix.group)[:, :, None]
    if matrix.minimum is not None:
        values += _level(matrix.minimum, matrix.super_minimum, matrix.group)[:, :, None]
    return values.reshape(rows, columns).astype(np.float32, copy=False)


def fold_super_scales(matrix: Affine) -> Affine:
    """Multiply the two levels of scales of `matrix` into one float32 level, without changing any
    weight: an 8-bit multiplier times a float16 has at most 19 significant bits. A matrix with one
    level is returned unchanged."""
    if matrix.super_scale is None:
        return matrix
    minimum = matrix.minimum
    if minimum is not None:
        minimum = _level(minimum, matrix.super_minimum, matrix.group)
    return replace(
        matrix,
        scale=_level(matrix.scale, matrix.super_scale, matrix.group),
        minimum=minimum,
        super_scale=None,
        super_minimum=None,
    )


def _widen(matrix: Dense) -> Floats:
    if matrix.dtype == "bf16":
        return bfloat16_to_float32(matrix.data.view(np.uint16))
    values: Floats = matrix.data.astype(np.float32, copy=False)
    return values


def _unpack(matrix: Affine) -> npt.NDArray[np.uint8]:
    stored: npt.NDArray[np.uint8] = matrix.q
    if matrix.bits == 8:
        return stored
    q = np.empty((*stored.shape, 2), np.uint8)
    np.bitwise_and(stored, 15, out=q[..., 0])
    np.right_shift(stored, 4, out=q[..., 1])
    return q


def _level(
    values: npt.NDArray[np.generic], superior: npt.NDArray[np.float16] | None, group: int
) -> Floats:
    """Return the scales or minima of all groups, [N, groups] float32. `superior`: the factor for
    each 256 columns by which `values` are multiplied; None: there is only one level."""
    level = values.astype(np.float32)
    if superior is not None:
        repeated = np.repeat(superior.astype(np.float32), 256 // group, axis=1)
        level *= repeated[:, : level.shape[1]]
    return level
