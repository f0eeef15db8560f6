"""The row-wise ops of recurrent layers: norms with a gate, gates, sums and relu^2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.cases.row_costs import elementwise_cost
from penstock.kernels.registry import Case, Inputs, Op, Tolerance


def _norm(x: torch.Tensor, eps: float, groups: int) -> torch.Tensor:
    parts: torch.Tensor = x.unflatten(-1, (groups, -1))
    return (parts / torch.sqrt(parts.square().mean(-1, keepdim=True) + eps)).flatten(-2)


def norm_then_gate(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, groups: int
) -> torch.Tensor:
    """Return rms_norm(x) * weight * silu(gate): [T, W] -> [T, W]. Each of `groups` equal parts of a
    row is normalized on its own. `weight`: [W]."""
    wide = torch.promote_types(x.dtype, weight.dtype)
    normal = _norm(x.to(wide), eps, groups) * weight
    return (normal * torch.nn.functional.silu(gate.to(wide))).to(x.dtype)


def gate_then_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, groups: int
) -> torch.Tensor:
    """Return rms_norm(x * silu(gate)) * weight: [T, W] -> [T, W], in groups as in
    `norm_then_gate`."""
    wide = torch.promote_types(x.dtype, weight.dtype)
    gated = x.to(wide) * torch.nn.functional.silu(gate.to(wide))
    return (_norm(gated, eps, groups) * weight).to(x.dtype)


def sigmoid_mul(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Return x * sigmoid(gate): [T, W] -> [T, W]. A gate of one column, [T, 1], applies to the
    whole row."""
    return x * torch.sigmoid(gate)


def silu_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Return x * silu(gate): [T, W] -> [T, W]."""
    return x * torch.nn.functional.silu(gate)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x + y: [T, W] -> [T, W]."""
    return x + y


def relu_squared(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0)^2: [T, F] -> [T, F]."""
    return torch.relu(x).square()


def _norm_inputs(tokens: int, width: int, groups: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        x = source.normal(tokens, width) * torch.exp(source.normal(tokens, 1))
        if tokens > 1:
            x[0] = 0  # only eps keeps this row from a division by zero
        gate = source.normal(tokens, width) * 4
        extremes = torch.tensor([-200.0, -90.0, -0.0, 0.0, 90.0, 200.0])
        gate[0, : min(6, width)] = extremes[: min(6, width)]
        weight = source.normal(width)
        return {"x": x, "gate": gate, "weight": weight, "eps": 1e-5, "groups": groups}

    return make_inputs


def _gate_inputs(tokens: int, width: int, columns: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        gate = source.normal(tokens, columns) * 4
        extremes = torch.tensor([-200.0, -90.0, -0.0, 0.0, 90.0, 200.0])
        gate[0, : min(6, columns)] = extremes[: min(6, columns)]
        return {"x": source.normal(tokens, width), "gate": gate}

    return make_inputs


def _sum_inputs(tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        return {"x": source.normal(tokens, width), "y": source.normal(tokens, width)}

    return make_inputs


def _plain_inputs(tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    return lambda seed: {"x": RandomInputs(seed).normal(tokens, width) * 3}


def _alone(*names: str) -> Callable[[Inputs, int], dict[str, Any]]:
    def alone(inputs: Inputs, index: int) -> dict[str, Any]:
        return {**inputs, **{name: inputs[name][index : index + 1] for name in names}}

    return alone


_SHAPES = ((1, 32), (3, 1536), (17, 100), (5, 7))
_ORDER = ("triton", "native", "reference")
_NORMS = ((1, 32, 1), (3, 2048, 16), (17, 96, 3), (5, 24, 1), (2, 1000, 5))

NORM_THEN_GATE, GATE_THEN_NORM = (
    Op(
        name=name,
        signature="x float [T, W]; gate float [T, W]; weight float32 [W]; real eps; "
        "integer groups; write out float [T, W]",
        reference=reference,
        cases=tuple(Case(f"T{t}-W{w}-{g}", "float", _norm_inputs(t, w, g)) for t, w, g in _NORMS),
        benchmarks=tuple(
            Case(f"qwen3.5-0.8b-T{t}", "float", _norm_inputs(t, 2048, 16)) for t in (1, 512)
        ),
        tolerance={"float": Tolerance(1e-5, 1e-5)},
        cost=elementwise_cost(3, 10),
        order=_ORDER,
        alone=_alone("x", "gate"),
    )
    for name, reference in (("norm_then_gate", norm_then_gate), ("gate_then_norm", gate_then_norm))
)
SIGMOID_MUL = Op(
    name="sigmoid_mul",
    signature="x float [T, W]; gate float [T, gate_columns]; write out float [T, W]",
    reference=sigmoid_mul,
    cases=(
        *(Case(f"T{t}-W{w}", "float", _gate_inputs(t, w, w)) for t, w in _SHAPES),
        *(Case(f"T{t}-W{w}-one", "float", _gate_inputs(t, w, 1)) for t, w in _SHAPES),
    ),
    benchmarks=(Case("qwen3.5-0.8b-T512", "float", _gate_inputs(512, 2048, 2048)),),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=elementwise_cost(3, 5),
    order=_ORDER,
    alone=_alone("x", "gate"),
)
SILU_GATE = Op(
    name="silu_gate",
    signature="x float [T, W]; gate float [T, W]; write out float [T, W]",
    reference=silu_gate,
    cases=tuple(Case(f"T{t}-W{w}", "float", _gate_inputs(t, w, w)) for t, w in _SHAPES),
    benchmarks=(Case("falcon-h1-0.5b-T512", "float", _gate_inputs(512, 1536, 1536)),),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=elementwise_cost(3, 5),
    order=_ORDER,
    alone=_alone("x", "gate"),
)
ADD = Op(
    name="add",
    signature="x float [T, W]; y float [T, W]; write out float [T, W]",
    reference=add,
    cases=tuple(Case(f"T{t}-W{w}", "float", _sum_inputs(t, w)) for t, w in _SHAPES),
    benchmarks=(Case("qwen3.5-0.8b-T512", "float", _sum_inputs(512, 1024)),),
    tolerance={"float": Tolerance(1e-6, 1e-6)},
    cost=elementwise_cost(3, 1),
    order=_ORDER,
    alone=_alone("x", "y"),
)
RELU_SQUARED = Op(
    name="relu_squared",
    signature="x float [T, F]; write out float [T, F]",
    reference=relu_squared,
    cases=tuple(Case(f"T{t}-F{w}", "float", _plain_inputs(t, w)) for t, w in _SHAPES),
    benchmarks=(Case("nemotron-T512", "float", _plain_inputs(512, 12288)),),
    tolerance={"float": Tolerance(1e-6, 1e-6)},
    cost=elementwise_cost(2, 2),
    order=_ORDER,
    alone=_alone("x"),
)
