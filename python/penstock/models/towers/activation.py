"""The activations of towers."""

from __future__ import annotations

from typing import TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.models.towers.vision_spec import VisionActivation

Tensor = TypeVar("Tensor")


def activate(ops: Ops[Tensor], x: Tensor, activation: VisionActivation) -> Tensor:
    """Apply an activation to `x` [T, F], or for the gated ones to `x` [T, 2 F]."""
    match activation:
        case "gelu":
            return ops.gelu(x)
        case "gelu_tanh":
            return ops.gelu_tanh(x)
        case "quick_gelu":
            return ops.quick_gelu(x)
        case "silu_mul":
            return ops.silu_mul(x)
        case "gelu_mul":
            return ops.gelu_mul(x)
        case "gelu_tanh_mul":
            return ops.gelu_tanh_mul(x)
