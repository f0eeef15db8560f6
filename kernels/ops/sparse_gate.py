"""The op `sparse_gelu_tanh_mul`: a feed-forward's activation that keeps only the largest gates
(Gemma 3n)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.registry import Case, Cost, Op, Tolerance


def sparse_gelu_tanh_mul(gate_up: torch.Tensor, deviations: float) -> torch.Tensor:
    """Return gelu(max(gate - cutoff, 0)) * up for gate_up = [gate | up], with the tanh
    approximation of gelu: [T, 2 F] -> [T, F]. The cutoff is the mean of a token's gates plus
    `deviations` times their standard deviation."""
    gate, up = gate_up.chunk(2, dim=-1)
    mean = gate.mean(dim=-1, keepdim=True)
    cutoff = mean + deviations * (gate - mean).square().mean(dim=-1, keepdim=True).sqrt()
    return torch.nn.functional.gelu((gate - cutoff).clamp(min=0), approximate="tanh") * up


def _inputs(tokens: int, width: int, deviations: float) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        gate_up = source.normal(tokens, 2 * width) * 4 + source.normal(tokens, 1)
        return {"gate_up": gate_up, "deviations": deviations}

    return make_inputs


SPARSE_GELU_TANH_MUL = Op(
    name="sparse_gelu_tanh_mul",
    signature="gate_up float [T, 2*F]; real deviations; write out float [T, F]",
    reference=sparse_gelu_tanh_mul,
    cases=tuple(
        Case(f"T{tokens}-F{width}", "float", _inputs(tokens, width, deviations))
        for tokens, width, deviations in (
            (1, 32, 1.0),
            (3, 1536, 1.6448536),
            (17, 100, -0.5),
            (5, 7, 0.0),
        )
    ),
    benchmarks=(Case("gemma3n-T512", "float", _inputs(512, 8192, 1.6448536)),),
    tolerance={"float": Tolerance(3e-5, 1e-5)},
    cost=lambda inputs: Cost(6 * inputs["gate_up"].numel(), 5 * inputs["gate_up"].numel()),
    order=("triton", "native", "reference"),
    alone=lambda inputs, index: {**inputs, "gate_up": inputs["gate_up"][index : index + 1]},
)
