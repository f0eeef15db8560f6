"""Norms of some columns of a row, in place. A program computes one group of columns."""

from __future__ import annotations

import torch

from penstock.kernels.ops.columns import NORM_COLUMNS
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton


@triton.jit(do_not_specialize=["eps"])
def norm_columns_kernel(
    x,
    weight,
    eps,
    WIDTH: tl.constexpr,
    FIRST: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * GROUP
    column = tl.arange(0, BLOCK)
    inside = column < GROUP
    place = x + row * WIDTH + FIRST + start + column
    values = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, axis=0) / GROUP + eps)
    factors = tl.load(weight + start + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, values * scale * factors, mask=inside)


def norm_columns(
    x: torch.Tensor, weight: torch.Tensor, first: int, group: int, eps: float
) -> torch.Tensor:
    """See `Ops.norm_columns`. `x` is contiguous."""
    block = power_of_two(group)
    launch(
        norm_columns_kernel,
        (len(x), len(weight) // group),
        *(x, weight, eps),
        num_warps=min(max(block // 512, 1), 8),
        WIDTH=x.shape[1],
        FIRST=first,
        GROUP=group,
        BLOCK=block,
    )
    return x


NORM_COLUMNS.register(Impl("triton", norm_columns, why_not, invariant_kinds=("float",)))
