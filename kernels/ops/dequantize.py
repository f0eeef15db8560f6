"""Dequantization: converts stored weights to real numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from penstock.kernels.arrays import tensor_of
from penstock.kernels.weights import Affine, Dense, Float8, Matrix


def _tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    return tensor_of(array).to(dtype)


def _per_group(multiplier: Any, super_scale: Any, group: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the factor of each group: [N, ceil(C / group)]. A multiplier is multiplied by its
    super scale, if there is one."""
    factors = _tensor(multiplier, dtype)
    if super_scale is None:
        return factors
    spread = _tensor(super_scale, dtype).repeat_interleave(256 // group, dim=1)
    return factors * spread[:, : factors.shape[1]]


def integers(weight: Affine) -> torch.Tensor:
    """Return the stored integers of a matrix, one per byte: [N, C] uint8."""
    q = tensor_of(weight.q)
    if weight.bits == 8:
        return q
    return torch.stack((q & 15, q >> 4), dim=2).reshape(weight.shape)


def scales(weight: Affine, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scales and the minima of all groups: two tensors [N, ceil(C / group)] of
    `dtype`."""
    scale = _per_group(weight.scale, weight.super_scale, weight.group, dtype)
    if weight.minimum is None:
        return scale, -weight.zero_point * scale
    return scale, _per_group(weight.minimum, weight.super_minimum, weight.group, dtype)


def dequantize(matrix: Matrix, dtype: torch.dtype) -> torch.Tensor:
    """Return the values of a matrix: [N, C] of `dtype` on the CPU."""
    if isinstance(matrix, Dense):
        if matrix.dtype == "bf16":
            bits = np.ascontiguousarray(matrix.data).view(np.int16)
            return tensor_of(bits).view(torch.bfloat16).to(dtype)
        return _tensor(matrix.data, dtype)
    if isinstance(matrix, Float8):
        codes = tensor_of(matrix.codes).view(torch.float8_e4m3fn)
        return codes.to(dtype) * _spread(matrix, dtype)
    scale, minimum = (
        factor.repeat_interleave(matrix.group, 1)[:, : matrix.shape[1]]
        for factor in scales(matrix, dtype)
    )
    return scale * integers(matrix).to(dtype) + minimum


def _spread(matrix: Float8, dtype: torch.dtype) -> torch.Tensor:
    """Return the scale of every element: [N, C]."""
    rows, columns = matrix.block
    spread = _tensor(matrix.scale, dtype).repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return spread[: matrix.shape[0], : matrix.shape[1]]


def stored_bytes(matrix: Matrix) -> int:
    """Return the size of a stored matrix in bytes, including its scales."""
    if isinstance(matrix, Dense):
        return int(matrix.data.nbytes)
    if isinstance(matrix, Float8):
        return int(matrix.codes.nbytes + matrix.scale.nbytes)
    arrays = (matrix.q, matrix.scale, matrix.minimum, matrix.super_scale, matrix.super_minimum)
    return sum(int(array.nbytes) for array in arrays if array is not None)
