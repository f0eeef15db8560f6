"""The ops `layer_norm` and `add_layer_norm`: layer normalisation (arXiv 1607.06450), also after a
residual addition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias: [T, W], [W], [W] -> [T, W]."""
    away = x - x.mean(dim=-1, keepdim=True)
    return away / torch.sqrt(away.square().mean(dim=-1, keepdim=True) + eps) * weight + bias


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (layer_norm(s), s) with s = x + residual, both [T, W]."""
    total = x + residual
    return layer_norm(total, weight, bias, eps), total


def _inputs(tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        # The mean is far from zero: a variance computed as E[x^2] - E[x]^2 would be inexact.
        x = source.normal(tokens, width) * torch.exp(source.normal(tokens, 1)) + 3
        if tokens > 1:
            x[0] = 0  # only eps keeps this row from a division by zero
        return {
            "x": x,
            "residual": source.normal(tokens, width),
            "weight": source.normal(width),
            "bias": source.normal(width),
            "eps": 1e-5,
        }

    return make_inputs


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    row = slice(index, index + 1)
    return {**inputs, "x": inputs["x"][row], "residual": inputs["residual"][row]}


def _cost(tensors: int, operations: int) -> Callable[[Inputs], Cost]:
    def cost(inputs: Inputs) -> Cost:
        elements, width = inputs["x"].numel(), inputs["weight"].numel()
        return Cost(4 * (tensors * elements + 2 * width), operations * elements)

    return cost


_CASES = tuple(
    Case(f"T{tokens}-W{width}", "float", _inputs(tokens, width))
    for tokens, width in ((1, 32), (3, 384), (17, 100), (2, 1024), (5, 64))
)
_BENCHMARKS = tuple(
    Case(f"minilm-T{tokens}", "float", _inputs(tokens, 384)) for tokens in (32, 512)
)
_TOLERANCE = {"float": Tolerance(1e-5, 1e-5)}
_ORDER = ("triton", "native", "reference")

LAYER_NORM = Op(
    name="layer_norm",
    signature=(
        "x float [T, W]; weight float32 [W]; bias float32 [W]; real eps; write out float [T, W]"
    ),
    reference=layer_norm,
    cases=_CASES,
    benchmarks=_BENCHMARKS,
    tolerance=_TOLERANCE,
    cost=_cost(2, 7),
    order=_ORDER,
    alone=_alone,
)
ADD_LAYER_NORM = Op(
    name="add_layer_norm",
    signature=(
        "x float [T, W]; residual float [T, W]; weight float32 [W]; bias float32 [W]; "
        "real eps; write out float [T, W]; write sum float [T, W]"
    ),
    reference=add_layer_norm,
    cases=_CASES,
    benchmarks=_BENCHMARKS,
    tolerance=_TOLERANCE,
    cost=_cost(4, 8),
    order=_ORDER,
    alone=_alone,
)
