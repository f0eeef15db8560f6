"""The activations of feed-forwards by name."""

from __future__ import annotations

from typing import TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import ExpertActivation

Tensor = TypeVar("Tensor")


def gated_activation(ops: Ops[Tensor], activation: ExpertActivation, gate_up: Tensor) -> Tensor:
    """Return act(gate) * up for gate_up = [gate | up]: [T, 2 F] -> [T, F]."""
    match activation:
        case "silu":
            return ops.silu_mul(gate_up)
        case "gelu_tanh":
            return ops.gelu_tanh_mul(gate_up)
        case "relu_squared" | "swiglu_oai":
            raise AssertionError(f"{activation} has no gate outside of experts")


def plain_activation(ops: Ops[Tensor], activation: ExpertActivation, x: Tensor) -> Tensor:
    """Return act(x): [T, F] -> [T, F]."""
    match activation:
        case "silu":
            return ops.silu(x)
        case "gelu_tanh":
            return ops.gelu_tanh(x)
        case "relu_squared":
            return ops.relu_squared(x)
        case "swiglu_oai":
            raise AssertionError("swiglu_oai needs a gate")
