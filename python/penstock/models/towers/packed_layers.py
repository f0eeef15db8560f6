"""Norms and linear layers of towers, packed for a kernel backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.models.towers.vision_weights import Product, TowerNorm

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class Norm(Generic[Tensor]):
    """A norm as tensors of a backend, [W] each: LayerNorm, or RMSNorm if `bias` is None."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    @classmethod
    def packed(cls, ops: Ops[Tensor], norm: TowerNorm | None, eps: float) -> Norm[Tensor] | None:
        """Convert a norm to tensors of a backend."""
        return None if norm is None else packed_norm(ops, norm, eps)

    def apply(self, ops: Ops[Tensor], x: Tensor) -> Tensor:
        """Return the normalized rows of `x` [T, W]."""
        if self.bias is None:
            return ops.rms_norm(x, self.weight, self.eps)
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, ops: Ops[Tensor], x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalized sum of `x` and `residual`, and the sum."""
        if self.bias is None:
            return ops.add_rms_norm(x, residual, self.weight, self.eps)
        return ops.add_layer_norm(x, residual, self.weight, self.bias, self.eps)


class Products(Generic[Tensor]):
    """Linear layers of the same input, whose outputs are beside each other."""

    def __init__(self, ops: Ops[Tensor], products: tuple[Product, ...]) -> None:
        self._parts = [(ops.pack_linear(one.linear), one.limits) for one in products]
        self._sizes = [one.linear.shape[0] for one in products]

    @property
    def is_single(self) -> bool:
        """Whether there is one linear layer."""
        return len(self._parts) == 1

    def of(self, ops: Ops[Tensor], x: Any) -> Any:
        """Return the outputs for the rows of `x`."""
        if len(self._parts) == 1:
            return _clipped_linear(ops, x, *self._parts[0])
        outputs: Any = ops.constant(np.empty((len(x), sum(self._sizes)), np.float32))
        first = 0
        for (packed, limits), size in zip(self._parts, self._sizes, strict=True):
            outputs[:, first : first + size] = _clipped_linear(ops, x, packed, limits)
            first += size
        return outputs


def _clipped_linear(
    ops: Ops[Any], x: Any, packed: Any, limits: tuple[float, float, float, float] | None
) -> Any:
    if limits is None:
        return ops.linear(x, packed)
    least, most, lowest, highest = limits
    return ops.linear(x.clip(least, most), packed).clip(lowest, highest)


def packed_norm(ops: Ops[Tensor], norm: TowerNorm, eps: float) -> Norm[Tensor]:
    """Convert a norm to tensors of a backend."""
    bias = None if norm.bias is None else ops.constant(norm.bias)
    return Norm(ops.constant(norm.weight), bias, eps)
