"""Weights as the Triton kernels read them. Dense weights are plain rows. Affine integers and 8-bit
floats are bytes with transposed scales, so that neighbouring columns of a product read neighbouring
scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch

from penstock.kernels.arrays import tensor_of
from penstock.kernels.ops.dequantize import dequantize, scales
from penstock.kernels.ops.linear import FLOAT8_GROUP
from penstock.kernels.regroup import has_half_steps
from penstock.kernels.weights import Affine, Dense, Float8, Matrix

LARGEST_FLOAT8 = 448
_ROWS_AT_ONCE = 1024  # float32 copies of more rows would be as large as the memory they save

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class PackedDense:
    """Dense weights. `data: [N, C]` in float32, float16 or bfloat16."""

    data: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, width = self.data.shape
        return rows, width


@dataclass(frozen=True, slots=True)
class PackedAffine:
    """Affine integer weights.

    `q: [N, C * bits / 8]`: uint8.
    `scale`, `minimum: [ceil(C / group), N]`: float16 if the checkpoint has a single level of
    float16 scales, otherwise float32; two levels are multiplied, which is exact.
    `minimum` is None if every minimum is -zero_point * scale.
    `bits`: of an integer. `group`: columns that share a scale.
    """

    q: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None
    bits: int
    group: int
    zero_point: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.q.shape[1] * 8 // self.bits


@dataclass(frozen=True, slots=True)
class PackedFloat8:
    """Weights in 8-bit floats.

    `codes: [N, C]`: uint8.
    `scale: [groups, ceil(N / scale_rows)]`: float32.
    `scale_rows`: rows that share a scale.
    `grouped`: a group has 128 columns; otherwise one group has all columns.
    `tile_scale: [ceil(N / 128), C / 128]`: the transpose of `scale`, as cuBLAS reads it, if a scale
        covers 128 x 128 weights; otherwise None.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    scale_rows: int
    grouped: bool
    tile_scale: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]


Packed: TypeAlias = "PackedDense | PackedAffine | PackedFloat8"


def pack_matrix(matrix: Matrix, device: str, dtype: torch.dtype = torch.float32) -> Packed:
    """Return the matrix packed on the device. Dense weights are converted to `dtype`, the type of
    activations; if that is float32, they keep their own type. Scales of 8-bit floats that cover all
    columns are repeated for every row."""
    if isinstance(matrix, Dense):
        stored = _DTYPES[matrix.dtype] if dtype == torch.float32 else dtype
        return PackedDense(dequantize(matrix, stored).to(device))
    if isinstance(matrix, Float8):
        return _float8(matrix, device)
    q = tensor_of(matrix.q).to(device)
    scale, minimum = _factors(matrix)
    bits, zero_point = int(matrix.bits), matrix.zero_point
    if scale.dtype == torch.float32 and has_half_steps(matrix):
        q = q[:, 0::2] >> 1 | q[:, 1::2] << 3
        scale, minimum = 2 * scale, -zero_point * scale
        bits, zero_point = 4, 0
    return PackedAffine(
        q,
        scale.T.contiguous().to(device),
        None if minimum is None else minimum.T.contiguous().to(device),
        bits,
        matrix.group,
        zero_point,
    )


def _float8(matrix: Float8, device: str) -> PackedFloat8:
    (height, columns), (_, width) = matrix.block, matrix.shape
    assert columns in (FLOAT8_GROUP, width), f"no kernel has groups of {columns} columns"
    codes = tensor_of(matrix.codes).to(device)
    grouped = columns != width
    scale = tensor_of(matrix.scale.T).to(device)
    packed = PackedFloat8(codes, scale, height, grouped)
    return with_tile_scale(packed) if grouped else one_scale_a_row(packed)


def with_tile_scale(part: PackedFloat8) -> PackedFloat8:
    """Return the weights with `tile_scale`, if a scale covers 128 x 128 weights."""
    if not part.grouped or part.scale_rows != FLOAT8_GROUP:
        return part
    return replace(part, tile_scale=part.scale.t().contiguous())


def in_float8(part: PackedDense) -> PackedFloat8:
    """Round dense weights to 8-bit floats on their device, with a scale per row."""
    rows, width = part.shape
    codes = torch.empty(rows, width, dtype=torch.uint8, device=part.data.device)
    scale = torch.empty(1, rows, device=part.data.device)
    for start in range(0, rows, _ROWS_AT_ONCE):
        piece = part.data[start : start + _ROWS_AT_ONCE].float()
        step = piece.abs().amax(dim=1) / LARGEST_FLOAT8
        scaled = piece / torch.where(step > 0, step, 1)[:, None]
        codes[start : start + len(piece)] = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
        scale[0, start : start + len(piece)] = step
    return PackedFloat8(codes, scale, 1, grouped=False)


def one_scale_a_row(part: PackedFloat8) -> PackedFloat8:
    """Return the same weights with a scale per row: scales that rows share are repeated."""
    rows, _ = part.shape
    scale = part.scale.repeat_interleave(part.scale_rows, 1)[:, :rows].contiguous()
    return PackedFloat8(part.codes, scale, 1, part.grouped)


def _factors(matrix: Affine) -> tuple[torch.Tensor, torch.Tensor | None]:
    halves = matrix.super_scale is None and all(
        one.dtype == np.float16 for one in (matrix.scale, matrix.minimum) if one is not None
    )
    scale, minimum = scales(matrix, torch.float16 if halves else torch.float32)
    return scale, None if matrix.minimum is None else minimum
