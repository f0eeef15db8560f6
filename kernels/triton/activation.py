"""Activation kernels, gated and plain; a program computes a tile of one row."""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.kernels.ops.activation import GELU, GELU_MUL, GELU_TANH_MUL, SILU_MUL, TANH
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import ceil_div, launch, why_not
from penstock.kernels.triton.language import tl, triton

_BLOCK = 1024
_SILU, _GELU_TANH, _GELU = 0, 1, 2  # activations of the gate


@triton.jit
def _gelu(x):
    return x * (0.5 * (1.0 + tl.erf(x * 0.7071067811865476)))


@triton.jit
def gated_kernel(out, gate_up, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr):
    """Compute act(gate) * up. GATE selects act: 0 is silu, 1 the tanh form of gelu, 2 gelu."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    source = gate_up + row * 2 * WIDTH + column
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=inside, other=0.0).to(tl.float32)
    if GATE == 2:
        active = _gelu(gate)
    else:
        exponent = gate
        if GATE == 1:
            # gelu is x times the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3).
            exponent = gate * (1.59576912161 + 0.07135481627 * gate * gate)
        active = gate / (1.0 + tl.exp(-exponent))
    tl.store(out + row * WIDTH + column, active * up, mask=inside)


@triton.jit
def plain_kernel(out, x, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TANH: tl.constexpr):
    """Compute tanh(x) if TANH, else gelu(x)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    values = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    active = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * values)) if TANH else _gelu(values)
    tl.store(out + row * WIDTH + column, active, mask=inside)


def _gated(gate: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def gated(gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops.silu_mul`, `Ops.gelu_mul` and `Ops.gelu_tanh_mul`. `gate_up` is contiguous."""
        tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(tokens, width)
        grid = (tokens, ceil_div(width, _BLOCK))
        launch(gated_kernel, grid, out, gate_up, WIDTH=width, BLOCK=_BLOCK, GATE=gate)
        return out

    return gated


def gelu(x: torch.Tensor) -> torch.Tensor:
    """See `Ops.gelu`. `x` is contiguous."""
    return _plain(x, tanh=False)


def tanh(x: torch.Tensor) -> torch.Tensor:
    """See `Ops.tanh`. `x` is contiguous."""
    return _plain(x, tanh=True)


def _plain(x: torch.Tensor, *, tanh: bool) -> torch.Tensor:
    tokens, width = x.shape
    out = torch.empty_like(x)
    grid = (tokens, ceil_div(width, _BLOCK))
    launch(plain_kernel, grid, out, x, WIDTH=width, BLOCK=_BLOCK, TANH=tanh)
    return out


silu_mul = _gated(_SILU)

SILU_MUL.register(Impl("triton", silu_mul, why_not, invariant_kinds=("float",)))
GELU_MUL.register(Impl("triton", _gated(_GELU), why_not, invariant_kinds=("float",)))
GELU_TANH_MUL.register(Impl("triton", _gated(_GELU_TANH), why_not, invariant_kinds=("float",)))
GELU.register(Impl("triton", gelu, why_not, invariant_kinds=("float",)))
TANH.register(Impl("triton", tanh, why_not, invariant_kinds=("float",)))
