"""Products with weights in 8-bit floats by cuBLAS, on a GPU, against float32."""

from __future__ import annotations

import pytest
import torch

from penstock.kernels.ops.linear import FLOAT8_GROUP
from penstock.kernels.triton.matmul import library_float8
from penstock.kernels.triton.matmul.packed_weights import (
    PackedDense,
    PackedFloat8,
    in_float8,
    with_tile_scale,
)
from penstock.kernels.triton.matmul.quantize_float8 import quantize_float8

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs compute capability 9.0",
    ),
]


def dequantized(codes: torch.Tensor, scale: torch.Tensor, scale_rows: int) -> torch.Tensor:
    """Return float32 values [R, C] of `codes` [R, C]. `scale: [groups, R / scale_rows]`."""
    rows, width = codes.shape
    every = scale.repeat_interleave(scale_rows, 1)[:, :rows]
    columns = every.repeat_interleave(-(-width // len(scale)), 0)[:width]
    return codes.view(torch.float8_e4m3fn).float() * columns.t()


def weights(form: str, rows: int, width: int) -> PackedFloat8:
    values = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) / width**0.5
    if form == "rows":
        return in_float8(PackedDense(values))
    codes = values.to(torch.float8_e4m3fn).view(torch.uint8)
    groups, tiles = -(-width // FLOAT8_GROUP), -(-rows // FLOAT8_GROUP)
    scale = torch.rand(groups, tiles, device="cuda") + 0.5
    return with_tile_scale(PackedFloat8(codes, scale, FLOAT8_GROUP, True))


def test_scales_whose_rows_are_not_aligned_are_left_to_triton() -> None:
    assert not library_float8.serves(weights("tiles", 256, 384), torch.bfloat16, 90)
    assert library_float8.serves(weights("rows", 256, 384), torch.bfloat16, 90)


@pytest.mark.parametrize("tokens", [1, 17, 64, 1000])
@pytest.mark.parametrize(("rows", "width"), [(256, 512), (1040, 1536)])
@pytest.mark.parametrize("form", ["rows", "tiles"])
@pytest.mark.parametrize("biased", [False, True])
def test_product_equals_that_of_the_rounded_operands(
    form: str, rows: int, width: int, tokens: int, biased: bool
) -> None:
    torch.manual_seed(tokens)
    part = weights(form, rows, width)
    x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(rows, device="cuda") if biased else None
    assert library_float8.serves(part, torch.bfloat16, 90)
    out = library_float8.library_product(x, part, bias)
    rounded = dequantized(*quantize_float8(x, part.grouped), 1)
    truth = rounded @ dequantized(part.codes, part.scale, part.scale_rows).t()
    truth = truth if bias is None else truth + bias
    assert out.shape == truth.shape and out.is_contiguous()
    error = (out.float() - truth).norm(dim=1) / truth.norm(dim=1)
    assert error.max() < 1e-2
