"""Ops on single elements: products, scaled sums, factors of rows, and the soft cap of logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance


def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x * y: [T, W] -> [T, W]."""
    return x * y


def scaled_sum(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """Return (x + y) * scale: [T, W] -> [T, W]."""
    return (x + y) * scale


def scale_rows(x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return x[t] * table[index[t]] for each t: [T, W], [positions], [T] -> [T, W]."""
    return (x * table[index.long()][:, None]).to(x.dtype)


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return cap * tanh(x / cap): [T, F] -> [T, F]."""
    return cap * torch.tanh(x / cap)


def _paired(tokens: int, width: int, **reals: float) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        return {"x": source.normal(tokens, width), "y": source.normal(tokens, width), **reals}

    return make_inputs


def _scaled_rows(tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        index = source.integers(0, 40, tokens)
        return {"x": source.normal(tokens, width), "table": source.normal(40), "index": index}

    return make_inputs


def _capped(tokens: int, width: int, cap: float) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        x = RandomInputs(seed).normal(tokens, width) * 40
        extremes = torch.tensor([-9e9, -100.0, -0.0, 1e-6, 100.0, 9e9])
        x[0, : min(6, width)] = extremes[: min(6, width)]
        return {"x": x, "cap": cap}

    return make_inputs


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    one = slice(index, index + 1)
    rows = {name: inputs[name][one] for name in ("x", "y", "index") if name in inputs}
    return {**inputs, **rows}


_SHAPES = ((1, 32), (3, 1536), (17, 100), (5, 7))
_ORDER = ("triton", "native", "reference")
_CLOSE = {"float": Tolerance(1e-6, 1e-6)}

MULTIPLY = Op(
    name="multiply",
    signature="x float [T, W]; y float [T, W]; write out float [T, W]",
    reference=multiply,
    cases=tuple(Case(f"T{t}-W{w}", "float", _paired(t, w)) for t, w in _SHAPES),
    benchmarks=(Case("gemma-e2b-T512", "float", _paired(512, 256)),),
    tolerance=_CLOSE,
    cost=lambda inputs: Cost(12 * inputs["x"].numel(), inputs["x"].numel()),
    order=_ORDER,
    alone=_alone,
)
SCALED_SUM = Op(
    name="scaled_sum",
    signature="x float [T, W]; y float [T, W]; real scale; write out float [T, W]",
    reference=scaled_sum,
    cases=tuple(Case(f"T{t}-W{w}", "float", _paired(t, w, scale=0.3)) for t, w in _SHAPES),
    benchmarks=(Case("gemma-e2b-T512", "float", _paired(512, 1536, scale=0.3)),),
    tolerance=_CLOSE,
    cost=lambda inputs: Cost(12 * inputs["x"].numel(), 2 * inputs["x"].numel()),
    order=_ORDER,
    alone=_alone,
)
SCALE_ROWS = Op(
    name="scale_rows",
    signature=(
        "x float [T, W]; table float32 [positions]; index int32 [T]; write out float [T, W]"
    ),
    reference=scale_rows,
    cases=tuple(Case(f"T{t}-W{w}", "float", _scaled_rows(t, w)) for t, w in _SHAPES),
    benchmarks=(Case("llama4-T512", "float", _scaled_rows(512, 5120)),),
    tolerance=_CLOSE,
    cost=lambda inputs: Cost(8 * inputs["x"].numel(), inputs["x"].numel()),
    order=_ORDER,
    alone=_alone,
)
SOFT_CAP = Op(
    name="soft_cap",
    signature="x float [T, F]; real cap; write out float [T, F]",
    reference=soft_cap,
    cases=tuple(
        Case(f"T{t}-F{w}-cap{cap}", "float", _capped(t, w, cap))
        for (t, w), cap in zip(_SHAPES, (30.0, 50.0, 1.5, 30.0), strict=True)
    ),
    benchmarks=(Case("gemma-S8", "float", _capped(8, 262_144, 30.0)),),
    tolerance={"float": Tolerance(2e-5, 1e-5)},
    cost=lambda inputs: Cost(8 * inputs["x"].numel(), 18 * inputs["x"].numel()),
    order=_ORDER,
    alone=_alone,
)
