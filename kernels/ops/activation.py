"""The gated activation of a feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.draw import Draw
from penstock.kernels.op import Case, Cost, Inputs, Op, Tolerance


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for gate_up = [gate | up]: [T, 2 F] -> [T, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def _draw(tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    def draw(seed: int) -> dict[str, Any]:
        gate_up = Draw(seed).normal(tokens, 2 * width) * 4
        # Where exp overflows or vanishes in float32, silu must still be x or 0.
        extremes = torch.tensor([-200.0, -90.0, -0.0, 0.0, 90.0, 200.0])
        gate_up[0, : min(6, width)] = extremes[: min(6, width)]
        return {"gate_up": gate_up}

    return draw


def _cost(inputs: Inputs) -> Cost:
    elements = inputs["gate_up"].numel()
    return Cost(6 * elements, 5 * elements // 2)


SILU_MUL = Op(
    name="silu_mul",
    reference=silu_mul,
    invoke=lambda ops, inputs: (ops.silu_mul(inputs["gate_up"]),),
    cases=tuple(
        Case(f"T{tokens}-F{width}", "float", _draw(tokens, width))
        for tokens, width in ((1, 32), (3, 1536), (17, 100), (5, 7))
    ),
    benchmarks=tuple(
        Case(f"{model}-T{tokens}", "float", _draw(tokens, width))
        for model, width in (("smollm2", 1536), ("qwen1.5b", 8960))
        for tokens in (1, 512)
    ),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=_cost,
    order=("triton", "native", "reference"),
    alone=lambda inputs, index: {"gate_up": inputs["gate_up"][index : index + 1]},
)
