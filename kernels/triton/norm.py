"""RMSNorm: one program per row, which reads the row once and keeps it in registers."""

from __future__ import annotations

import torch

from penstock.kernels.ops.norm import ADD_RMS_NORM, RMS_NORM
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton


@triton.jit(do_not_specialize=["eps"])
def rms_norm_kernel(
    out,
    total,
    x,
    residual,
    weight,
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
    mean = tl.sum(values * values, axis=0) / WIDTH
    scale = 1.0 / tl.sqrt_rn(mean + eps)
    factors = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + column, values * scale * factors, mask=inside)


def _launch(out, total, x, residual, weight, eps, add: int) -> None:
    tokens, width = x.shape
    block = power_of_two(width)
    launch(
        rms_norm_kernel,
        (tokens,),
        *(out, total, x, residual, weight, eps),
        num_warps=min(max(block // 512, 1), 8),
        WIDTH=width,
        BLOCK=block,
        ADD=add,
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `Ops.rms_norm`. `x` is contiguous."""
    out = x.new_empty(*x.shape)  # cheaper than empty_like
    _launch(out, out, x, x, weight, eps, add=0)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.add_rms_norm`. `x` and `residual` are contiguous."""
    tokens, width = x.shape
    out, total = x.new_empty(tokens, width), x.new_empty(tokens, width)
    _launch(out, total, x, residual, weight, eps, add=1)
    return out, total


RMS_NORM.register(Impl("triton", rms_norm, why_not, invariant_kinds=("float",)))
ADD_RMS_NORM.register(Impl("triton", add_rms_norm, why_not, invariant_kinds=("float",)))
