"""The activation that keeps the largest gates: a program computes one row, whose gates it reads
three times."""

from __future__ import annotations

import torch

from penstock.kernels.ops.sparse_gate import SPARSE_GELU_TANH_MUL
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton

_BLOCK = 2048


@triton.jit(do_not_specialize=["deviations"])
def sparse_gate_kernel(out, gate_up, deviations, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    gates, lane = gate_up + row * 2 * WIDTH, tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, WIDTH, BLOCK):
        column = first + lane
        sums += tl.load(gates + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    mean = tl.sum(sums, axis=0) / WIDTH
    squares = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, WIDTH, BLOCK):
        column = first + lane
        gate = tl.load(gates + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        squares += tl.where(column < WIDTH, (gate - mean) * (gate - mean), 0.0)
    cutoff = mean + deviations * tl.sqrt_rn(tl.sum(squares, axis=0) / WIDTH)
    for first in range(0, WIDTH, BLOCK):
        column = first + lane
        inside = column < WIDTH
        gate = tl.load(gates + column, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gates + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        kept = tl.maximum(gate - cutoff, 0.0)
        exponent = kept * (1.59576912161 + 0.07135481627 * kept * kept)
        tl.store(out + row * WIDTH + column, kept / (1.0 + tl.exp(-exponent)) * up, mask=inside)


def sparse_gelu_tanh_mul(gate_up: torch.Tensor, deviations: float) -> torch.Tensor:
    """See `Ops.sparse_gelu_tanh_mul`. `gate_up` is contiguous."""
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(tokens, width)
    block = min(power_of_two(width), _BLOCK)
    launch(sparse_gate_kernel, (tokens,), out, gate_up, deviations, WIDTH=width, BLOCK=block)
    return out


SPARSE_GELU_TANH_MUL.register(
    Impl("triton", sparse_gelu_tanh_mul, why_not, invariant_kinds=("float",))
)
