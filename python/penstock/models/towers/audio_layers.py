"""The transformer layers of audio encoders, computed in pieces."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import CacheDtype
from penstock.kernels.weights import Linear
from penstock.models.decoder.rope import identity_table
from penstock.models.towers.attention_groups import AttentionGroups, empty_cache
from penstock.models.towers.audio_spec import AudioLayersSpec, qkv_linear
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower_weights import TowerTensors, is_coarse

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class PackedNorm(Generic[Tensor]):
    """A LayerNorm's weight and bias as tensors of a backend."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def read(cls, ops: Ops[Tensor], tensors: TowerTensors, name: str) -> PackedNorm[Tensor]:
        weight, bias = (tensors.vector(f"{name}.{part}") for part in ("weight", "bias"))
        return cls(ops.constant(weight), ops.constant(bias))


@dataclass(frozen=True, slots=True)
class _Layer(Generic[Tensor]):
    """The packed weights of one layer."""

    norm: PackedNorm[Tensor]
    qkv: Any
    output: Any
    mlp_norm: PackedNorm[Tensor]
    up: Any
    down: Any


class AudioLayers(Generic[Tensor]):
    """The layers of an audio encoder whose weights are packed for one kernel backend.

    Attention rounds its operands to bfloat16 if the weights are coarse anyway.

    - `root`: precedes the names of all tensors.
    - `last_norm`: the norm after the last layer.
    """

    def __init__(
        self,
        spec: AudioLayersSpec,
        tensors: TowerTensors,
        ops: Ops[Tensor],
        root: str,
        last_norm: PackedNorm[Tensor],
    ) -> None:
        self._spec = spec
        self._last_norm = last_norm
        self._layers: list[_Layer[Tensor]] = []
        self._cache_dtype: CacheDtype = "f16"
        for index in range(spec.layers):
            prefix = f"{root}layers.{index}."
            qkv = qkv_linear(tensors, f"{prefix}self_attn.", key_bias=spec.key_bias)
            if not is_coarse(qkv):
                self._cache_dtype = "f32"
            self._layers.append(_layer(tensors, ops, prefix, qkv))

    def run(
        self, ops: Ops[Tensor], x: Tensor, lengths: Sequence[int], budget: PieceBudget
    ) -> Generator[None, None, tuple[Tensor, Tensor]]:
        """Compute the layers over the residual stream `x: [N, W]`, which is modified. Returns the
        states after the last norm and before it, [N, W] each.

        - `lengths`: the rows of each sequence; rows attend to the rows of their own sequence.
        """
        spec = self._spec
        heads = (spec.heads, spec.heads, spec.head_dim)
        scale = spec.head_dim**-0.5
        positions = np.zeros(sum(lengths), np.int32)  # of the identity table, which has one row
        count, groups = len(positions), AttentionGroups(ops, lengths, positions)
        cache = empty_cache(ops, [lengths], spec.heads, spec.head_dim, self._cache_dtype)
        attend = (
            ops.rounded_attention if self._cache_dtype == "f16" else ops.bidirectional_attention
        )
        rope = ops.constant(identity_table(1))
        states: Any = ops.constant(np.empty((count, spec.width), np.float32))
        queries: Any = ops.constant(np.empty((count, spec.width), np.float32))
        residual: Any = x
        first = self._layers[0].norm
        states[:] = ops.layer_norm(residual, first.weight, first.bias, spec.norm_eps)
        norms = [layer.norm for layer in self._layers[1:]] + [self._last_norm]
        for layer, next_norm in zip(self._layers, norms, strict=True):
            for at in budget.slices(count, spec.qkv_operations):
                qkv, inputs = ops.linear(states[at], layer.qkv), groups.piece(at).inputs
                queries[at] = ops.rope_cache(qkv, rope, inputs, cache, heads, None)
                yield
            for at in budget.slices(count, spec.feed_operations(groups.longest)):
                inputs = groups.piece(at).inputs
                seen = attend(queries[at], inputs, cache, heads, scale, 0)
                states[at], residual[at] = self._feed(ops, layer, seen, residual[at], next_norm)
                yield
        return states, residual

    def _feed(
        self,
        ops: Ops[Tensor],
        layer: _Layer[Tensor],
        seen: Tensor,
        residual: Tensor,
        next_norm: PackedNorm[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Compute a layer after its attention. Return the input of the next layer and the
        residual."""
        eps, norm = self._spec.norm_eps, layer.mlp_norm
        x = ops.linear(seen, layer.output)
        x, residual = ops.add_layer_norm(x, residual, norm.weight, norm.bias, eps)
        x = ops.linear(ops.gelu(ops.linear(x, layer.up)), layer.down)
        return ops.add_layer_norm(x, residual, next_norm.weight, next_norm.bias, eps)


def _layer(tensors: TowerTensors, ops: Ops[Any], prefix: str, qkv: Linear) -> _Layer[Any]:
    def packed(name: str) -> Any:
        return ops.pack_linear(tensors.linear([prefix + name], biased=True))

    return _Layer(
        norm=PackedNorm.read(ops, tensors, f"{prefix}self_attn_layer_norm"),
        qkv=ops.pack_linear(qkv),
        output=packed("self_attn.out_proj"),
        mlp_norm=PackedNorm.read(ops, tensors, f"{prefix}final_layer_norm"),
        up=packed("fc1"),
        down=packed("fc2"),
    )
