"""Ops for the activations of a feed-forward layer: silu or gelu times a gate, and activations
without a gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up for gate_up = [gate | up]: [T, 2 F] -> [T, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return gelu(gate) * up for gate_up = [gate | up]: [T, 2 F] -> [T, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu(gate) * up


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return gelu(gate) * up for gate_up = [gate | up], with the tanh approximation of gelu: [T, 2
    F] -> [T, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return x * Phi(x), with Phi the distribution function of the normal distribution: [T, F] ->
    [T, F]."""
    return torch.nn.functional.gelu(x)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """Return gelu(x) with the tanh approximation: [T, F] -> [T, F]."""
    return torch.nn.functional.gelu(x, approximate="tanh")


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """Return x / (1 + exp(-1.702 x)): [T, F] -> [T, F]."""
    return x * torch.sigmoid(1.702 * x)


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return x / (1 + exp(-x)): [T, F] -> [T, F]."""
    return torch.nn.functional.silu(x)


def tanh(x: torch.Tensor) -> torch.Tensor:
    """Return the hyperbolic tangent of each element: [T, F] -> [T, F]."""
    return torch.tanh(x)


def _plain_inputs(tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        x = RandomInputs(seed).normal(tokens, width) * 3
        extremes = torch.tensor([-200.0, -10.0, -5.5, -0.0, 5.5, 200.0])
        x[0, : min(6, width)] = extremes[: min(6, width)]
        return {"x": x}

    return make_inputs


def _inputs(tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        gate_up = RandomInputs(seed).normal(tokens, 2 * width) * 4
        # silu must be x or 0 even if exp overflows or vanishes in float32.
        extremes = torch.tensor([-200.0, -90.0, -0.0, 0.0, 90.0, 200.0])
        gate_up[0, : min(6, width)] = extremes[: min(6, width)]
        return {"gate_up": gate_up}

    return make_inputs


def _cost(inputs: Inputs) -> Cost:
    elements = inputs["gate_up"].numel()
    return Cost(6 * elements, 5 * elements // 2)


_SHAPES = ((1, 32), (3, 1536), (17, 100), (5, 7))
_ORDER = ("triton", "native", "reference")

SILU_MUL = Op(
    name="silu_mul",
    signature="gate_up float [T, 2*F]; write out float [T, F]",
    reference=silu_mul,
    cases=tuple(Case(f"T{t}-F{w}", "float", _inputs(t, w)) for t, w in _SHAPES),
    benchmarks=tuple(
        Case(f"{model}-T{tokens}", "float", _inputs(tokens, width))
        for model, width in (("smollm2", 1536), ("qwen1.5b", 8960))
        for tokens in (1, 512)
    ),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=_cost,
    order=_ORDER,
    alone=lambda inputs, index: {"gate_up": inputs["gate_up"][index : index + 1]},
)
GELU_MUL = Op(
    name="gelu_mul",
    signature="gate_up float [T, 2*F]; write out float [T, F]",
    reference=gelu_mul,
    cases=tuple(Case(f"T{t}-F{w}", "float", _inputs(t, w)) for t, w in _SHAPES),
    benchmarks=(Case("modernbert-T512", "float", _inputs(512, 1152)),),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=_cost,
    order=_ORDER,
    alone=lambda inputs, index: {"gate_up": inputs["gate_up"][index : index + 1]},
)
GELU_TANH_MUL = Op(
    name="gelu_tanh_mul",
    signature="gate_up float [T, 2*F]; write out float [T, F]",
    reference=gelu_tanh_mul,
    cases=tuple(Case(f"T{t}-F{w}", "float", _inputs(t, w)) for t, w in _SHAPES),
    benchmarks=(Case("gemma270m-T512", "float", _inputs(512, 2048)),),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=_cost,
    order=_ORDER,
    alone=lambda inputs, index: {"gate_up": inputs["gate_up"][index : index + 1]},
)
GELU = Op(
    name="gelu",
    signature="x float [T, F]; write out float [T, F]",
    reference=gelu,
    cases=tuple(Case(f"T{t}-F{w}", "float", _plain_inputs(t, w)) for t, w in _SHAPES),
    benchmarks=(Case("minilm-T512", "float", _plain_inputs(512, 1536)),),
    tolerance={"float": Tolerance(1e-6, 1e-5)},
    cost=lambda inputs: Cost(8 * inputs["x"].numel(), 20 * inputs["x"].numel()),
    order=_ORDER,
    alone=lambda inputs, index: {"x": inputs["x"][index : index + 1]},
)
GELU_TANH, QUICK_GELU, SILU = (
    Op(
        name=name,
        signature="x float [T, F]; write out float [T, F]",
        reference=reference,
        cases=tuple(Case(f"T{t}-F{w}", "float", _plain_inputs(t, w)) for t, w in _SHAPES),
        benchmarks=(Case(f"{model}-T1024", "float", _plain_inputs(1024, width)),),
        tolerance={"float": Tolerance(1e-5, 1e-5)},
        cost=lambda inputs: Cost(8 * inputs["x"].numel(), 16 * inputs["x"].numel()),
        order=_ORDER,
        alone=lambda inputs, index: {"x": inputs["x"][index : index + 1]},
    )
    for name, reference, model, width in (
        ("gelu_tanh", gelu_tanh, "siglip", 4304),
        ("quick_gelu", quick_gelu, "clip", 4096),
        ("silu", silu, "conformer", 4096),
    )
)
TANH = Op(
    name="tanh",
    signature="x float [T, F]; write out float [T, F]",
    reference=tanh,
    cases=tuple(Case(f"T{t}-F{w}", "float", _plain_inputs(t, w)) for t, w in _SHAPES),
    benchmarks=(Case("minilm-R64", "float", _plain_inputs(64, 384)),),
    tolerance={"float": Tolerance(1e-6, 1e-5)},
    cost=lambda inputs: Cost(8 * inputs["x"].numel(), 16 * inputs["x"].numel()),
    order=_ORDER,
    alone=lambda inputs, index: {"x": inputs["x"][index : index + 1]},
)
