"""Activations of towers that are not ops of their own."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.models.towers.vision_spec import VisionActivation

Tensor = TypeVar("Tensor")

_QUICK = 1.702


def activate(ops: Ops[Tensor], x: Tensor, activation: VisionActivation) -> Tensor:
    """Apply an activation to `x` [T, F], or for the gated ones to `x` [T, 2 F]."""
    match activation:
        case "gelu":
            return ops.gelu(x)
        case "silu_mul":
            return ops.silu_mul(x)
        case "gelu_mul":
            return ops.gelu_mul(x)
        case "gelu_tanh_mul":
            return ops.gelu_tanh_mul(x)
        case "gelu_tanh":
            return ops.gelu_tanh_mul(_beside(ops, x, 1.0, 1.0))
        case "quick_gelu":  # x sigmoid(1.702 x)
            return ops.silu_mul(_beside(ops, x, _QUICK, 1 / _QUICK))


def _beside(ops: Ops[Tensor], x: Any, factor: float, up: float) -> Tensor:
    """Return [factor * x | up, up, ...]."""
    rows, columns = x.shape
    both: Any = ops.constant(np.full((rows, 2 * columns), up, np.float32))
    both[:, :columns] = x * factor
    result: Tensor = both
    return result
