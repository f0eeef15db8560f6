"""Activation kernels, gated and plain; a program computes a tile of one row."""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.kernels.ops.activation import (
    GELU,
    GELU_MUL,
    GELU_TANH,
    GELU_TANH_MUL,
    QUICK_GELU,
    SILU,
    SILU_MUL,
    TANH,
)
from penstock.kernels.ops.recurrent_rows import RELU_SQUARED
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import ceil_div, launch, why_not
from penstock.kernels.triton.language import tl, triton

_BLOCK = 1024
_SILU, _GELU_TANH, _GELU, _TANH, _QUICK_GELU, _RELU_SQUARED = range(6)


@triton.jit
def _activate(x, WHICH: tl.constexpr):
    """Return act(x). WHICH selects act: 0 is silu, 1 the tanh form of gelu, 2 gelu, 3 tanh, 4
    x / (1 + exp(-1.702 x)), 5 max(x, 0)^2."""
    if WHICH == 2:
        return x * (0.5 * (1.0 + tl.erf(x * 0.7071067811865476)))
    elif WHICH == 3:
        return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))
    elif WHICH == 5:
        positive = tl.maximum(x, 0.0)
        return positive * positive
    else:
        exponent = x
        if WHICH == 1:
            # gelu is x times the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3).
            exponent = x * (1.59576912161 + 0.07135481627 * x * x)
        if WHICH == 4:
            exponent = x * 1.702
        return x / (1.0 + tl.exp(-exponent))


@triton.jit
def gated_kernel(out, gate_up, WIDTH: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr):
    """Compute act(gate) * up. GATE selects act as in `_activate`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    source = gate_up + row * 2 * WIDTH + column
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, _activate(gate, GATE) * up, mask=inside)


@triton.jit
def plain_kernel(out, x, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WHICH: tl.constexpr):
    """Compute act(x). WHICH selects act as in `_activate`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    values = tl.load(x + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, _activate(values, WHICH), mask=inside)


def _gated(gate: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def gated(gate_up: torch.Tensor) -> torch.Tensor:
        """See `Ops.silu_mul`, `Ops.gelu_mul` and `Ops.gelu_tanh_mul`. `gate_up` is contiguous."""
        tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(tokens, width)
        grid = (tokens, ceil_div(width, _BLOCK))
        launch(gated_kernel, grid, out, gate_up, WIDTH=width, BLOCK=_BLOCK, GATE=gate)
        return out

    return gated


def _plain(which: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def plain(x: torch.Tensor) -> torch.Tensor:
        """See `Ops.gelu`, `Ops.gelu_tanh`, `Ops.quick_gelu`, `Ops.silu`, `Ops.tanh` and
        `Ops.relu_squared`. `x` is contiguous."""
        tokens, width = x.shape
        out = torch.empty_like(x)
        grid = (tokens, ceil_div(width, _BLOCK))
        launch(plain_kernel, grid, out, x, WIDTH=width, BLOCK=_BLOCK, WHICH=which)
        return out

    return plain


silu_mul = _gated(_SILU)

SILU_MUL.register(Impl("triton", silu_mul, why_not, invariant_kinds=("float",)))
GELU_MUL.register(Impl("triton", _gated(_GELU), why_not, invariant_kinds=("float",)))
GELU_TANH_MUL.register(Impl("triton", _gated(_GELU_TANH), why_not, invariant_kinds=("float",)))
for _op, _which in (
    (GELU, _GELU),
    (GELU_TANH, _GELU_TANH),
    (QUICK_GELU, _QUICK_GELU),
    (SILU, _SILU),
    (TANH, _TANH),
    (RELU_SQUARED, _RELU_SQUARED),
):
    _op.register(Impl("triton", _plain(_which), why_not, invariant_kinds=("float",)))
