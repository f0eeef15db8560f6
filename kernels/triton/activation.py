"""SiLU-mul, a tile of one row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from penstock.kernels.op import Impl
from penstock.kernels.ops.activation import SILU_MUL
from penstock.kernels.triton.launch import ceil_div, launch, why_not

_BLOCK = 1024


@triton.jit
def silu_mul_kernel(out, gate_up, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    source = gate_up + row * 2 * WIDTH + column
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, gate / (1.0 + tl.exp(-gate)) * up, mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `Ops.silu_mul`. `gate_up` is contiguous."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, width)
    grid = (tokens, ceil_div(width, _BLOCK))
    launch(silu_mul_kernel, grid, out, gate_up, WIDTH=width, BLOCK=_BLOCK)
    return out


SILU_MUL.register(Impl("triton", silu_mul, why_not, invariant_kinds=("float",)))
