"""Weights as the Triton kernels read them: plain rows for floats, bytes and transposed group
factors for affine integers, so that neighbouring columns of a product read neighbouring factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from penstock.kernels.ops.dequantize import dequantize, scales
from penstock.kernels.weights import Affine, Dense, Matrix

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class PackedDense:
    """`data: [N, K]` in the weight's own format."""

    data: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1]


@dataclass(frozen=True, slots=True)
class PackedAffine:
    """`q: [N, K * bits / 8]` uint8; `scale`, `minimum`: [K / group, N], float16 where the source
    has one level and float32 where two were multiplied out (which is exact). No minimum where it
    is -zero_point * scale."""

    q: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None
    bits: int
    group: int
    zero_point: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.q.shape[1] * 8 // self.bits


Packed: TypeAlias = "PackedDense | PackedAffine"


def pack_matrix(matrix: Matrix, device: str, dtype: torch.dtype = torch.float32) -> Packed:
    """The matrix on the device. Dense weights are held in the type of activations, `dtype`; in
    their own where that is float32."""
    if isinstance(matrix, Dense):
        held = _DTYPES[matrix.dtype] if dtype == torch.float32 else dtype
        return PackedDense(dequantize(matrix, held).to(device))
    q = torch.from_numpy(np.ascontiguousarray(matrix.q)).to(device)
    scale, minimum = _factors(matrix)
    return PackedAffine(
        q,
        scale.T.contiguous().to(device),
        None if minimum is None else minimum.T.contiguous().to(device),
        matrix.bits,
        matrix.group,
        matrix.zero_point,
    )


def _factors(matrix: Affine) -> tuple[torch.Tensor, torch.Tensor | None]:
    one_level = matrix.super_scale is None and matrix.scale.dtype == np.float16
    scale, minimum = scales(matrix, torch.float16 if one_level else torch.float32)
    return scale, None if matrix.minimum is None else minimum
