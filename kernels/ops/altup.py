"""Ops of alternating updates (AltUp, Gemma 3n): a layer computes one of four parallel hidden
states and corrects the others with learned coefficients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.cases.row_costs import elementwise_cost
from penstock.kernels.registry import Case, Inputs, Op, Tolerance

STREAMS = 4

Streams = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def altup_predict(
    s0: torch.Tensor,
    s1: torch.Tensor,
    s2: torch.Tensor,
    s3: torch.Tensor,
    coefficients: torch.Tensor,
) -> Streams:
    """Return four predictions [T, W]: p_j = s_j + sum over i of coefficients[:, 4 j + i] * s_i.
    `coefficients`: [T, 16]."""
    streams = (s0, s1, s2, s3)
    p0, p1, p2, p3 = (
        own + sum(coefficients[:, 4 * j + i, None] * other for i, other in enumerate(streams))
        for j, own in enumerate(streams)
    )
    return p0, p1, p2, p3


def altup_correct(
    p0: torch.Tensor,
    p1: torch.Tensor,
    p2: torch.Tensor,
    p3: torch.Tensor,
    activated: torch.Tensor,
    coefficients: torch.Tensor,
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return four corrected predictions, c_j = p_j + (coefficients[:, j] + 1) * (activated - p0),
    and c_0 * weight: [T, W] each. `coefficients`: [T, 4]. `weight`: [W]."""
    innovation = activated - p0
    c0, c1, c2, c3 = (
        prediction + (coefficients[:, j, None] + 1) * innovation
        for j, prediction in enumerate((p0, p1, p2, p3))
    )
    return c0, c1, c2, c3, (c0 * weight).to(c0.dtype)


def match_magnitude(x: torch.Tensor, target: torch.Tensor, least: float) -> torch.Tensor:
    """Return x times the root mean square of `target` divided by that of x, for each row: [T, W] ->
    [T, W]. The mean square of x counts as at least `least`."""
    own = x.square().mean(dim=-1, keepdim=True).clamp(min=least)
    return x * (target.square().mean(dim=-1, keepdim=True) / own).sqrt()


def _streams(source: RandomInputs, letter: str, tokens: int, width: int) -> dict[str, torch.Tensor]:
    return {f"{letter}{index}": source.normal(tokens, width) for index in range(STREAMS)}


def _predict_inputs(tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        streams = _streams(source, "s", tokens, width)
        return {**streams, "coefficients": source.normal(tokens, STREAMS**2)}

    return make_inputs


def _correct_inputs(tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        return {
            **_streams(source, "p", tokens, width),
            "activated": source.normal(tokens, width),
            "coefficients": source.normal(tokens, STREAMS),
            "weight": source.normal(width),
        }

    return make_inputs


def _match_inputs(tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        x = source.normal(tokens, width) * torch.exp(source.normal(tokens, 1))
        if tokens > 1:
            x[0] *= 1e-4  # below the least mean square
        return {"x": x, "target": source.normal(tokens, width), "least": 1e-5}

    return make_inputs


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    one = slice(index, index + 1)
    rows = {name: value[one] for name, value in inputs.items() if getattr(value, "ndim", 0) == 2}
    return {**inputs, **rows}


_SHAPES = ((1, 32), (3, 1536), (17, 100), (5, 7))
_ORDER = ("triton", "native", "reference")

ALTUP_PREDICT = Op(
    name="altup_predict",
    signature=(
        "s0 float [T, W]; s1 float [T, W]; s2 float [T, W]; s3 float [T, W]; "
        "coefficients float [T, 16]; write p0 float [T, W]; write p1 float [T, W]; "
        "write p2 float [T, W]; write p3 float [T, W]"
    ),
    reference=altup_predict,
    cases=tuple(Case(f"T{t}-W{w}", "float", _predict_inputs(t, w)) for t, w in _SHAPES),
    benchmarks=(Case("gemma3n-T512", "float", _predict_inputs(512, 2048)),),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=elementwise_cost(8, 32),
    order=_ORDER,
    alone=_alone,
)
ALTUP_CORRECT = Op(
    name="altup_correct",
    signature=(
        "p0 float [T, W]; p1 float [T, W]; p2 float [T, W]; p3 float [T, W]; "
        "activated float [T, W]; coefficients float [T, 4]; weight float32 [W]; "
        "write c0 float [T, W]; write c1 float [T, W]; write c2 float [T, W]; "
        "write c3 float [T, W]; write scaled float [T, W]"
    ),
    reference=altup_correct,
    cases=tuple(Case(f"T{t}-W{w}", "float", _correct_inputs(t, w)) for t, w in _SHAPES),
    benchmarks=(Case("gemma3n-T512", "float", _correct_inputs(512, 2048)),),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=elementwise_cost(10, 10),
    order=_ORDER,
    alone=_alone,
)
MATCH_MAGNITUDE = Op(
    name="match_magnitude",
    signature="x float [T, W]; target float [T, W]; real least; write out float [T, W]",
    reference=match_magnitude,
    cases=tuple(Case(f"T{t}-W{w}", "float", _match_inputs(t, w)) for t, w in _SHAPES),
    benchmarks=(Case("gemma3n-T512", "float", _match_inputs(512, 2048)),),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=elementwise_cost(3, 5),
    order=_ORDER,
    alone=_alone,
)
