"""Products with weights in 8-bit floats by cuBLAS, through `torch._scaled_mm`.

Activations are rounded to 8 bits as for Triton's kernel "float8". Two forms of scales have kernels
on compute capability 9.0: one scale per row, and one scale per 128 x 128 weights together with one
per 128 activations of a row. Both add sums of few columns in float32.
"""

from __future__ import annotations

import torch

from penstock.kernels.ops.linear import FLOAT8_GROUP
from penstock.kernels.triton.compile.launch import ceil_div
from penstock.kernels.triton.matmul.packed_weights import PackedFloat8
from penstock.kernels.triton.matmul.quantize_float8 import quantize_float8

CAPABILITY = 90
_ROW_ALIGNMENT = 4  # cuBLAS finds no kernel for other numbers of scales per group
_WEIGHT_ALIGNMENT = 16
_TILE_SCALES_ALIGNMENT = 4  # of the scales of 128 rows of weights: 16 bytes


def serves(part: PackedFloat8, result: torch.dtype, capability: int) -> bool:
    """Return whether cuBLAS has a kernel for the product. `result`: the type of the product."""
    rows, width = part.shape
    aligned = rows % _WEIGHT_ALIGNMENT == 0 and width % FLOAT8_GROUP == 0
    scaled = part.scale_rows == 1 and not part.grouped
    if part.tile_scale is not None:
        scaled = part.tile_scale.shape[1] % _TILE_SCALES_ALIGNMENT == 0
    return capability == CAPABILITY and aligned and scaled and result == torch.bfloat16


def library_product(x: torch.Tensor, part: PackedFloat8, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x [T, C] times the transpose of the weights, plus the bias: [T, N] bfloat16."""
    tokens = len(x)
    padded = _ROW_ALIGNMENT * ceil_div(tokens, _ROW_ALIGNMENT)
    codes, scale = quantize_float8(x, part.grouped, padded)
    weight_scale = part.scale if part.tile_scale is None else part.tile_scale.t()
    out = torch._scaled_mm(
        codes,
        part.codes.view(torch.float8_e4m3fn).t(),
        scale_a=scale.t(),
        scale_b=weight_scale,
        out_dtype=torch.bfloat16,
    )[:tokens]
    return out if bias is None else out.add_(bias)
