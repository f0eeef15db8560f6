"""Reads the mixture of experts of one decoder layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from penstock.kernels.weights import Dense, Experts, Linear, Matrix
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.mixer import LayerTensors, Vector
from penstock.models.decoder.tensor_names import TensorNames
from penstock.quant.affine import unify_affine
from penstock.quant.weight_slices import split_rows


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """The shared experts of a layer, a feed-forward of S elements.

    - `gate_up` [2 S, W], without gates [S, W]; `down` [W, S].
    - `router` [1, W]: the sigmoid of its result scales theirs; None: it is not scaled.
    """

    gate_up: Linear
    down: Linear
    router: Linear | None = None

    @property
    def linears(self) -> tuple[Linear, ...]:
        """All linear layers."""
        own = (self.gate_up, self.down)
        return own if self.router is None else (*own, self.router)


BESIDE_NORMS: Final = ("dense_post_norm", "experts_norm", "experts_post_norm", "router_scale")
"""The roles of the norms of experts beside a dense feed-forward."""


@dataclass(frozen=True, slots=True)
class BesideNorms:
    """The norms [W] around both blocks: of the results of the dense feed-forward and of the
    experts, of the input of the experts, and of that of their router."""

    dense_post: Vector
    experts: Vector
    experts_post: Vector
    router: Vector

    @classmethod
    def read(cls, tensors: LayerTensors, width: int) -> BesideNorms:
        """Read the norms of one layer. The router's input is divided by the root of its width."""
        post, norm, experts_post = map(tensors.norm, BESIDE_NORMS[:3])
        scale = tensors.array("router_scale") * np.float32(width**-0.5)
        return cls(post, norm, experts_post, scale)


class ExpertTensors(Protocol):
    """Reads matrices by their names. `DecoderWeights` implements it."""

    path: Path
    names: TensorNames

    def matrix(self, name: str) -> Matrix: ...

    def stack(self, name: str) -> tuple[Matrix, ...]: ...

    def row(self, name: str) -> Dense: ...

    def array(self, name: str) -> Vector: ...

    def fused(self, prefix: str, parts: Sequence[tuple[str, int]], biased: bool) -> Linear: ...


def read_experts(weights: ExpertTensors, prefix: str, mixture: ExpertsSpec) -> Experts:
    """Return the experts of the layer whose tensors' names start with `prefix`."""
    names = weights.names
    opening = (names.expert_gate, names.expert_up) if mixture.gated else (names.expert_up,)
    down = _matrices(weights, f"{prefix}{names.expert_down}.weight", mixture.count)
    stacks: list[tuple[Matrix, ...]] = []
    for name in dict.fromkeys(opening):
        stack = _matrices(weights, f"{prefix}{name}.weight", mixture.count)
        sizes = [mixture.intermediate_size] * opening.count(name)
        stacks += zip(*(split_rows(matrix, sizes) for matrix in stack), strict=True)
    gate, up = ((), *stacks)[-2:]
    biases: tuple[Vector | None, Vector | None] = (None, None)
    if mixture.biased:
        biases = (_biases(weights, prefix, opening), _biases(weights, prefix, [names.expert_down]))
    return Experts(
        gate,
        up,
        down,
        *biases,
        mixture.activation,
        mixture.shares_scale,
        opening_names=tuple(f"{prefix}{name}.weight" for name in opening),
        down_name=f"{prefix}{names.expert_down}.weight",
    )


def read_shared(weights: ExpertTensors, prefix: str, mixture: ExpertsSpec) -> SharedWeights | None:
    """Return the shared experts of the layer whose tensors' names start with `prefix`, or None."""
    names, size = weights.names, mixture.shared_size
    if not size:
        return None
    opening = (names.shared_gate, names.shared_up) if mixture.gated else (names.shared_up,)
    router = None
    if mixture.shared_gated:
        router = Linear((weights.row(f"{prefix}{names.shared_router}.weight"),))
    return SharedWeights(
        weights.fused(prefix, [(name, size) for name in opening], biased=False),
        weights.fused(prefix, [(names.shared_down, 0)], biased=False),
        router,
    )


def _matrices(weights: ExpertTensors, name: str, count: int) -> tuple[Matrix, ...]:
    """Return the matrices of all `count` experts of a layer, stored as one tensor per expert or one
    tensor for all."""
    if "{}" in name:
        each = tuple(weights.matrix(name.format(expert)) for expert in range(count))
        return unify_affine(each, f"{weights.path}: {name}")
    return weights.stack(name)


def _biases(weights: ExpertTensors, prefix: str, names: Sequence[str]) -> Vector:
    """Return the biases [E, N] of all experts of a layer, joined along N."""
    each = (weights.array(f"{prefix}{name}.bias") for name in dict.fromkeys(names))
    return np.concatenate(list(each), axis=1)
