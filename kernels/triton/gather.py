"""Gathers rows of a tensor; a program copies a tile of one row."""

from __future__ import annotations

import torch

from penstock.kernels.ops.gather import GATHER_ROWS
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import ceil_div, launch, why_not
from penstock.kernels.triton.language import tl, triton

_BLOCK = 1024


@triton.jit
def gather_rows_kernel(out, x, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    row = tl.load(rows + place).to(tl.int64)
    values = tl.load(x + row * WIDTH + column, mask=inside)
    tl.store(out + place * WIDTH + column, values, mask=inside)


def gather_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """See `Ops.gather_rows`. `x` (logits or hidden states, for example) is contiguous."""
    width = x.shape[1]
    out = x.new_empty(len(rows), width)
    grid = (len(rows), ceil_div(width, _BLOCK))
    launch(gather_rows_kernel, grid, out, x, rows, WIDTH=width, BLOCK=_BLOCK)
    return out


GATHER_ROWS.register(Impl("triton", gather_rows, why_not, invariant_kinds=("exact",)))
