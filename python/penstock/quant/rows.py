"""Rows of a weight: taking some in another order, and how much memory they hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, Experts, Float8, Linear, Matrix


def take_rows(matrix: Matrix, rows: npt.NDArray[np.intp]) -> Matrix:
    """The matrix whose row n is row `rows[n]` of `matrix`. Exact in every layout: groups lie
    inside a row."""
    if isinstance(matrix, Dense):
        return Dense(matrix.data[rows], matrix.dtype)
    if isinstance(matrix, Float8):
        height, width = matrix.block
        return Float8(matrix.codes[rows], matrix.scale[rows // height], (1, width))
    return replace(
        matrix,
        q=matrix.q[rows],
        scale=matrix.scale[rows],
        minimum=None if matrix.minimum is None else matrix.minimum[rows],
        super_scale=None if matrix.super_scale is None else matrix.super_scale[rows],
        super_minimum=None if matrix.super_minimum is None else matrix.super_minimum[rows],
    )


def size_bytes(matrix: Matrix) -> int:
    """Bytes of the arrays of a weight."""
    return sum(array.nbytes for array in _arrays(matrix))


def linear_bytes(linear: Linear) -> int:
    """Bytes of the arrays of a linear layer."""
    bias = 0 if linear.bias is None else linear.bias.nbytes
    return bias + sum(map(size_bytes, linear.parts))


def expert_bytes(experts: Experts) -> int:
    """Bytes of the arrays of all experts of a layer."""
    return sum(map(size_bytes, experts.gate + experts.up + experts.down))


def _arrays(matrix: Matrix) -> list[npt.NDArray[np.generic]]:
    if isinstance(matrix, Dense):
        return [matrix.data]
    if isinstance(matrix, Float8):
        return [matrix.codes, matrix.scale]
    optional = (matrix.minimum, matrix.super_scale, matrix.super_minimum)
    return [matrix.q, matrix.scale, *(array for array in optional if array is not None)]
