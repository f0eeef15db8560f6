"""The ops `rms_norm` and `add_rms_norm`: root-mean-square normalisation (arXiv 1910.07467), also
after a residual addition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight: [T, W], [W] -> [T, W]."""
    return x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rms_norm(s), s) with s = x + residual, both [T, W]."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def _inputs(tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        x = source.normal(tokens, width) * torch.exp(source.normal(tokens, 1))
        if tokens > 1:
            x[0] = 0  # only eps keeps this row from a division by zero
        return {
            "x": x,
            "residual": source.normal(tokens, width),
            "weight": source.normal(width),
            "eps": 1e-5,
        }

    return make_inputs


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    row = slice(index, index + 1)
    return {**inputs, "x": inputs["x"][row], "residual": inputs["residual"][row]}


def _cost(tensors: int, operations: int) -> Callable[[Inputs], Cost]:
    def cost(inputs: Inputs) -> Cost:
        elements = inputs["x"].numel()
        return Cost(4 * (tensors * elements + inputs["weight"].numel()), operations * elements)

    return cost


_CASES = tuple(
    Case(f"T{tokens}-W{width}", "float", _inputs(tokens, width))
    for tokens, width in ((1, 32), (3, 576), (17, 100), (2, 1536), (5, 64))
)
_BENCHMARKS = tuple(
    Case(f"{model}-T{tokens}", "float", _inputs(tokens, width))
    for model, width in (("smollm2", 576), ("qwen1.5b", 1536))
    for tokens in (1, 512)
)
_TOLERANCE = {"float": Tolerance(1e-5, 1e-5)}
_ORDER = ("cuda", "triton", "native", "reference")

RMS_NORM = Op(
    name="rms_norm",
    signature="x float [T, W]; weight float32 [W]; real eps; write out float [T, W]",
    reference=rms_norm,
    cases=_CASES,
    benchmarks=_BENCHMARKS,
    tolerance=_TOLERANCE,
    cost=_cost(2, 4),
    order=_ORDER,
    alone=_alone,
)
ADD_RMS_NORM = Op(
    name="add_rms_norm",
    signature=(
        "x float [T, W]; residual float [T, W]; weight float32 [W]; real eps; "
        "write out float [T, W]; write sum float [T, W]"
    ),
    reference=add_rms_norm,
    cases=_CASES,
    benchmarks=_BENCHMARKS,
    tolerance=_TOLERANCE,
    cost=_cost(4, 5),
    order=_ORDER,
    alone=_alone,
)
