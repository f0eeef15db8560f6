"""Pooling: means over sequences, and vectors scaled to length one. A program computes a tile of
columns of one sequence, or one row."""

from __future__ import annotations

import torch

from penstock.kernels.ops.pooling import L2_NORMALIZE, MEAN_ROWS
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import ceil_div, launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton

_BLOCK = 128


@triton.jit
def mean_rows_kernel(out, x, starts, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the mean over the tokens of one sequence. Tokens are added in ascending order, so
    that the sum does not depend on the batch."""
    sequence = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    place = x + begin.to(tl.int64) * WIDTH + column
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(begin, end):
        total += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        place += WIDTH
    tl.store(out + sequence * WIDTH + column, total / (end - begin), mask=inside)


@triton.jit
def l2_normalize_kernel(out, x, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    values = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    length = tl.sqrt_rn(tl.sum(values * values, axis=0))
    tl.store(out + row + column, values / tl.maximum(length, 1e-12), mask=inside)


def mean_rows(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """See `Ops.mean_rows`. `x` is contiguous."""
    width, sequences = x.shape[1], len(starts) - 1
    out = x.new_empty(sequences, width)
    grid = (sequences, ceil_div(width, _BLOCK))
    launch(mean_rows_kernel, grid, out, x, starts, WIDTH=width, BLOCK=_BLOCK)
    return out


def l2_normalize(x: torch.Tensor) -> torch.Tensor:
    """See `Ops.l2_normalize`. `x` is contiguous."""
    rows, width = x.shape
    block = power_of_two(width)
    out = torch.empty_like(x)
    warps = min(max(block // 512, 1), 8)
    launch(l2_normalize_kernel, (rows,), out, x, num_warps=warps, WIDTH=width, BLOCK=block)
    return out


MEAN_ROWS.register(Impl("triton", mean_rows, why_not, invariant_kinds=("float",)))
L2_NORMALIZE.register(Impl("triton", l2_normalize, why_not, invariant_kinds=("float",)))
