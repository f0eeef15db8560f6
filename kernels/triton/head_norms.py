"""Norms of heads outside `rope_cache`: a program computes one head of one token."""

from __future__ import annotations

import torch

from penstock.kernels.ops.head_norms import NORM_ROPE, NORM_VALUES
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton


@triton.jit(do_not_specialize=["eps"])
def norm_values_kernel(
    out,
    x,
    eps,
    KEPT: tl.constexpr,
    HEADS: tl.constexpr,
    SHIFT: tl.constexpr,
    COLUMNS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy one of the first KEPT heads of a token, or normalize a value: head h of the result is
    head h - SHIFT of x."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    inside = lane < DIM
    source = tl.where(head < KEPT, head, head - SHIFT)
    values = tl.load(x + token * COLUMNS + source * DIM + lane, mask=inside, other=0.0)
    values = values.to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(values * values, axis=0) / DIM + eps)
    result = tl.where(head < KEPT, values, values * scale)
    tl.store(out + (token * HEADS + head) * DIM + lane, result, mask=inside)


@triton.jit(do_not_specialize=["eps"])
def norm_rope_kernel(
    out,
    x,
    weight,
    rope,
    positions,
    eps,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROTATED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Normalise and rotate one head. Element i of the first half of the rotated elements is paired
    with element i + half."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    half: tl.constexpr = ROTATED // 2
    first, rotates, inside = lane < half, lane < ROTATED, lane < DIM
    partner = tl.where(first, lane + half, tl.where(rotates, lane - half, lane))
    place = (token * HEADS + head) * DIM
    own = tl.load(x + place + lane, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(x + place + partner, mask=rotates, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(own * own, axis=0) / DIM + eps)
    own *= scale * tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)
    other *= scale * tl.load(weight + partner, mask=rotates, other=0.0).to(tl.float32)
    angles = rope + tl.load(positions + token).to(tl.int64) * ROTATED
    angle = tl.where(first, lane, lane - half)
    cosine = tl.load(angles + angle, mask=rotates, other=1.0).to(tl.float32)
    sine = tl.load(angles + half + angle, mask=rotates, other=0.0).to(tl.float32)
    turned = own * cosine + tl.where(first, -other, other) * sine
    tl.store(out + place + lane, tl.where(rotates, turned, own), mask=inside)


def norm_values(x: torch.Tensor, heads: tuple[int, int, int], eps: float) -> torch.Tensor:
    """See `Ops.norm_values`. `x` is contiguous."""
    q_heads, kv_heads, dim = heads
    tokens, columns = x.shape
    total = q_heads + 2 * kv_heads
    out = x.new_empty(tokens, total * dim)
    launch(
        norm_values_kernel,
        (tokens, total),
        *(out, x, eps),
        KEPT=q_heads + kv_heads,
        HEADS=total,
        SHIFT=total - columns // dim,
        COLUMNS=columns,
        DIM=dim,
        BLOCK=power_of_two(dim),
    )
    return out


def norm_rope(
    x: torch.Tensor,
    weight: torch.Tensor,
    rope: torch.Tensor,
    positions: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """See `Ops.norm_rope`. `x` and `rope` are contiguous."""
    tokens, dim = len(x), len(weight)
    heads = x.shape[1] // dim
    out = torch.empty_like(x)
    launch(
        norm_rope_kernel,
        (tokens, heads),
        *(out, x, weight, rope, positions, eps),
        HEADS=heads,
        DIM=dim,
        ROTATED=rope.shape[1],
        BLOCK=power_of_two(dim),
    )
    return out


NORM_VALUES.register(Impl("triton", norm_values, why_not, invariant_kinds=("float",)))
NORM_ROPE.register(Impl("triton", norm_rope, why_not, invariant_kinds=("float",)))
