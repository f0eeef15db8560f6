"""Sums, products, gates, factors of rows and the soft cap; a program computes a tile of one row.

All ops are bound by memory: the floor is the bytes of the operands and the result, read and written
once."""

from __future__ import annotations

import torch

from penstock.kernels.ops.elementwise import MULTIPLY, SCALE_ROWS, SCALED_SUM, SOFT_CAP
from penstock.kernels.ops.recurrent_rows import ADD, SIGMOID_MUL, SILU_GATE
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import ceil_div, launch, why_not
from penstock.kernels.triton.language import tl, triton

_BLOCK = 1024


@triton.jit(do_not_specialize=["scale"])
def paired_kernel(
    out, x, y, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr, MULTIPLIES: tl.constexpr
):
    """Compute x * y if MULTIPLIES, else (x + y) * scale."""
    row = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    left = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(y + row + column, mask=inside, other=0.0).to(tl.float32)
    result = left * right if MULTIPLIES else (left + right) * scale
    tl.store(out + row + column, result, mask=inside)


@triton.jit
def gate_kernel(
    out,
    x,
    gate,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE: tl.constexpr,
    SILU: tl.constexpr,
):
    """Compute x * silu(gate) if SILU, else x * sigmoid(gate). ONE: a row has one gate."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    place = row * WIDTH + column
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if ONE:
        factor = tl.load(gate + row).to(tl.float32)
    else:
        factor = tl.load(gate + place, mask=inside, other=0.0).to(tl.float32)
    open_part = 1.0 / (1.0 + tl.exp(-factor))
    if SILU:
        open_part *= factor
    tl.store(out + place, values * open_part, mask=inside)


@triton.jit
def scale_rows_kernel(out, x, table, index, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    factor = tl.load(table + tl.load(index + token)).to(tl.float32)
    values = tl.load(x + token * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * WIDTH + column, values * factor, mask=inside)


@triton.jit(do_not_specialize=["cap"])
def soft_cap_kernel(out, x, cap, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    values = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32) / cap
    bounded = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * values))
    tl.store(out + row + column, cap * bounded, mask=inside)


def _paired(x: torch.Tensor, y: torch.Tensor, scale: float, multiplies: bool) -> torch.Tensor:
    tokens, width = x.shape
    out = torch.empty_like(x)
    constants = {"WIDTH": width, "BLOCK": _BLOCK, "MULTIPLIES": multiplies}
    launch(paired_kernel, (tokens, ceil_div(width, _BLOCK)), out, x, y, scale, **constants)
    return out


def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """See `Ops.multiply`. `x` and `y` are contiguous."""
    return _paired(x, y, 1.0, True)


def scaled_sum(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """See `Ops.scaled_sum`. `x` and `y` are contiguous."""
    return _paired(x, y, scale, False)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """See `Ops.add`. `x` and `y` are contiguous."""
    return _paired(x, y, 1.0, False)


def _gated(x: torch.Tensor, gate: torch.Tensor, *, silu: int) -> torch.Tensor:
    tokens, width = x.shape
    out = torch.empty_like(x)
    constants = {"WIDTH": width, "BLOCK": _BLOCK, "ONE": int(gate.shape[1] < width), "SILU": silu}
    launch(gate_kernel, (tokens, ceil_div(width, _BLOCK)), out, x, gate, **constants)
    return out


def sigmoid_mul(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """See `Ops.sigmoid_mul`. `x` and `gate` are contiguous."""
    return _gated(x, gate, silu=0)


def silu_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """See `Ops.silu_gate`. `x` and `gate` are contiguous."""
    return _gated(x, gate, silu=1)


def scale_rows(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """See `Ops.scale_rows`. `x` is contiguous."""
    tokens, width = x.shape
    out = torch.empty_like(x)
    grid = (tokens, ceil_div(width, _BLOCK))
    launch(scale_rows_kernel, grid, out, x, table, index, WIDTH=width, BLOCK=_BLOCK)
    return out


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """See `Ops.soft_cap`. `x` is contiguous."""
    tokens, width = x.shape
    out = torch.empty_like(x)
    grid = (tokens, ceil_div(width, _BLOCK))
    launch(soft_cap_kernel, grid, out, x, cap, WIDTH=width, BLOCK=_BLOCK)
    return out


MULTIPLY.register(Impl("triton", multiply, why_not, invariant_kinds=("float",)))
SCALED_SUM.register(Impl("triton", scaled_sum, why_not, invariant_kinds=("float",)))
SCALE_ROWS.register(Impl("triton", scale_rows, why_not, invariant_kinds=("float",)))
SOFT_CAP.register(Impl("triton", soft_cap, why_not, invariant_kinds=("float",)))
ADD.register(Impl("triton", add, why_not, invariant_kinds=("float",)))
SIGMOID_MUL.register(Impl("triton", sigmoid_mul, why_not, invariant_kinds=("float",)))
SILU_GATE.register(Impl("triton", silu_gate, why_not, invariant_kinds=("float",)))
