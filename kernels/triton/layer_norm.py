"""LayerNorm: one program per row, which reads the row once and keeps it in registers."""

from __future__ import annotations

import torch

from penstock.kernels.ops.layer_norm import ADD_LAYER_NORM, LAYER_NORM
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton


@triton.jit(do_not_specialize=["eps"])
def layer_norm_kernel(
    out,
    total,
    x,
    residual,
    weight,
    bias,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    values = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(residual + row + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row + column, values, mask=inside)
    away = tl.where(inside, values - tl.sum(values, axis=0) / WIDTH, 0.0)
    scale = 1.0 / tl.sqrt_rn(tl.sum(away * away, axis=0) / WIDTH + eps)
    factors = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    offsets = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + column, away * scale * factors + offsets, mask=inside)


def _launch(out, total, x, residual, weight, bias, eps, add: int) -> None:
    tokens, width = x.shape
    block = power_of_two(width)
    launch(
        layer_norm_kernel,
        (tokens,),
        *(out, total, x, residual, weight, bias, eps),
        num_warps=min(max(block // 512, 1), 8),
        WIDTH=width,
        BLOCK=block,
        ADD=add,
    )


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """See `Ops.layer_norm`. `x` is contiguous."""
    out = torch.empty_like(x)
    _launch(out, out, x, x, weight, bias, eps, add=0)
    return out


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.add_layer_norm`. `x` and `residual` are contiguous."""
    out, total = torch.empty_like(x), torch.empty_like(x)
    _launch(out, total, x, residual, weight, bias, eps, add=1)
    return out, total


LAYER_NORM.register(Impl("triton", layer_norm, why_not, invariant_kinds=("float",)))
ADD_LAYER_NORM.register(Impl("triton", add_layer_norm, why_not, invariant_kinds=("float",)))
