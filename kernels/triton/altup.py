"""Alternating updates of four parallel hidden states; a program computes a tile of one row, or one
row whose mean it needs."""

from __future__ import annotations

import torch

from penstock.kernels.ops.altup import (
    ALTUP_CORRECT,
    ALTUP_PREDICT,
    MATCH_MAGNITUDE,
    STREAMS,
    Streams,
)
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import ceil_div, launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton

_BLOCK = 1024


@triton.jit
def predict_kernel(
    p0, p1, p2, p3, s0, s1, s2, s3, coefficients, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    place, own = token * WIDTH + column, coefficients + token * 16
    a = tl.load(s0 + place, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(s1 + place, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(s2 + place, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(s3 + place, mask=inside, other=0.0).to(tl.float32)
    for j in tl.static_range(4):
        mixed = tl.load(own + 4 * j).to(tl.float32) * a
        mixed += tl.load(own + 4 * j + 1).to(tl.float32) * b
        mixed += tl.load(own + 4 * j + 2).to(tl.float32) * c
        mixed += tl.load(own + 4 * j + 3).to(tl.float32) * d
        stream = a if j == 0 else b if j == 1 else c if j == 2 else d
        out = p0 if j == 0 else p1 if j == 1 else p2 if j == 2 else p3
        tl.store(out + place, stream + mixed, mask=inside)


@triton.jit
def correct_kernel(
    c0,
    c1,
    c2,
    c3,
    scaled,
    p0,
    p1,
    p2,
    p3,
    activated,
    coefficients,
    weight,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = token * WIDTH + column
    first = tl.load(p0 + place, mask=inside, other=0.0).to(tl.float32)
    innovation = tl.load(activated + place, mask=inside, other=0.0).to(tl.float32) - first
    for j in tl.static_range(4):
        prediction = p0 if j == 0 else p1 if j == 1 else p2 if j == 2 else p3
        out = c0 if j == 0 else c1 if j == 1 else c2 if j == 2 else c3
        factor = tl.load(coefficients + token * 4 + j).to(tl.float32) + 1.0
        values = tl.load(prediction + place, mask=inside, other=0.0).to(tl.float32)
        values += factor * innovation
        tl.store(out + place, values, mask=inside)
        if j == 0:
            factors = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
            tl.store(scaled + place, values * factors, mask=inside)


@triton.jit(do_not_specialize=["least"])
def match_kernel(out, x, target, least, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    values = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    wanted = tl.load(target + row + column, mask=inside, other=0.0).to(tl.float32)
    own = tl.maximum(tl.sum(values * values, axis=0) / WIDTH, least)
    factor = tl.sqrt_rn(tl.sum(wanted * wanted, axis=0) / WIDTH) / tl.sqrt_rn(own)
    tl.store(out + row + column, values * factor, mask=inside)


def altup_predict(
    s0: torch.Tensor,
    s1: torch.Tensor,
    s2: torch.Tensor,
    s3: torch.Tensor,
    coefficients: torch.Tensor,
) -> Streams:
    """See `Ops.altup_predict`. All tensors are contiguous."""
    tokens, width = s0.shape
    p0, p1, p2, p3 = (torch.empty_like(s0) for _ in range(STREAMS))
    operands = (p0, p1, p2, p3, s0, s1, s2, s3, coefficients)
    grid = (tokens, ceil_div(width, _BLOCK))
    launch(predict_kernel, grid, *operands, WIDTH=width, BLOCK=_BLOCK)
    return p0, p1, p2, p3


def altup_correct(
    p0: torch.Tensor,
    p1: torch.Tensor,
    p2: torch.Tensor,
    p3: torch.Tensor,
    activated: torch.Tensor,
    coefficients: torch.Tensor,
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `Ops.altup_correct`. All tensors are contiguous."""
    tokens, width = p0.shape
    c0, c1, c2, c3, scaled = (torch.empty_like(p0) for _ in range(STREAMS + 1))
    results = (c0, c1, c2, c3, scaled)
    operands = (p0, p1, p2, p3, activated, coefficients, weight)
    grid = (tokens, ceil_div(width, _BLOCK))
    launch(correct_kernel, grid, *results, *operands, WIDTH=width, BLOCK=_BLOCK)
    return results


def match_magnitude(x: torch.Tensor, target: torch.Tensor, least: float) -> torch.Tensor:
    """See `Ops.match_magnitude`. `x` and `target` are contiguous."""
    tokens, width = x.shape
    out, block = torch.empty_like(x), power_of_two(width)
    warps = min(max(block // 512, 1), 8)
    operands = (out, x, target, least)
    launch(match_kernel, (tokens,), *operands, num_warps=warps, WIDTH=width, BLOCK=block)
    return out


ALTUP_PREDICT.register(Impl("triton", altup_predict, why_not, invariant_kinds=("float",)))
ALTUP_CORRECT.register(Impl("triton", altup_correct, why_not, invariant_kinds=("float",)))
MATCH_MAGNITUDE.register(Impl("triton", match_magnitude, why_not, invariant_kinds=("float",)))
