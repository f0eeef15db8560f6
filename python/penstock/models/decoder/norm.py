"""The norms of the residual stream: RMSNorm and LayerNorm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.models.decoder.mixer import Vector
from penstock.models.decoder.spec import DecoderSpec

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class Norm(Generic[Tensor]):
    """A norm with its weight [W]. `bias`: [W], of a LayerNorm; None: the norm is an RMSNorm."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def of(self, ops: Ops[Tensor], x: Tensor) -> Tensor:
        """Return the normalized rows of x: [T, W] -> [T, W]."""
        if self.bias is None:
            return ops.rms_norm(x, self.weight, self.eps)
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def of_sum(self, ops: Ops[Tensor], x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalized rows of the sum x + residual, and the sum: [T, W] each."""
        if self.bias is None:
            return ops.add_rms_norm(x, residual, self.weight, self.eps)
        return ops.add_layer_norm(x, residual, self.weight, self.bias, self.eps)


def pack_norm(spec: DecoderSpec, weights: Vector, ops: Ops[Tensor]) -> Norm[Tensor]:
    """Return the norm with the weight [W], or with the weight and the bias [2, W]."""
    weight, *biases = np.atleast_2d(weights)
    bias = None
    if spec.norm_kind == "layer":
        bias = ops.constant(biases[0] if biases else np.zeros_like(weight))
    return Norm(ops.constant(weight), bias, spec.norm_eps)
