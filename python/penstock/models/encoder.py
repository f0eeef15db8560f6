"""The BERT-type encoder: the one definition of its computation, written over the ops.

Sequences are computed whole and see nothing of each other, so one cache serves all layers: a layer
writes its keys and values there and reads them before the next one writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.kernels.table import LayerCache, Ops, StepInputs
from penstock.models.encoder_spec import EncoderSpec
from penstock.models.encoder_weights import EncoderLayerWeights, EncoderWeights, Norm
from penstock.models.rope import identity_table
from penstock.quant.rows import linear_bytes, size_bytes

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class _Norm(Generic[Tensor]):
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class _Layer(Generic[Tensor]):
    """A packed layer: weights as `Ops.pack_linear` gave them."""

    qkv: Any
    output: Any
    output_norm: _Norm[Tensor]
    up: Any
    down: Any
    down_norm: _Norm[Tensor]


class Encoder(Generic[Tensor]):
    """An encoder whose weights are packed for one implementation of the ops. `weight_bytes` counts
    the source arrays."""

    def __init__(self, spec: EncoderSpec, weights: EncoderWeights, ops: Ops[Tensor]) -> None:
        self.spec = spec
        words, positions = weights.words(), weights.positions()
        self.weight_bytes = size_bytes(words) + size_bytes(positions)
        self._words = ops.pack_embedding(words)
        self._positions = ops.pack_embedding(positions)
        self._embedding_norm: _Norm[Tensor] = _norm(ops, weights.embedding_norm())
        self._no_rope = ops.constant(identity_table(spec.context_tokens))
        self._layers: list[_Layer[Tensor]] = []
        for index in range(spec.layers):
            self._layers.append(self._pack_layer(weights.layer(index), ops))

    def hidden(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        caches: Sequence[LayerCache[Tensor]],
        rows: Tensor | None,
    ) -> Tensor:
        """The last layer's states, of the tokens `rows` [S, W] or of all [T, W]. `caches`: one a
        layer, which may all be the same."""
        spec = self.spec
        heads = (spec.heads, spec.heads, spec.head_dim)
        scale = spec.head_dim**-0.5
        words = ops.embedding(self._words, inputs.tokens, 1.0)
        places = ops.embedding(self._positions, inputs.positions, 1.0)
        x = self._add_norm(ops, words, places, self._embedding_norm)
        for index, (layer, cache) in enumerate(zip(self._layers, caches, strict=True)):
            qkv = ops.linear(x, layer.qkv)
            q = ops.rope_cache(qkv, self._no_rope, inputs, cache, heads, None)
            seen = ops.bidirectional_attention(q, inputs, cache, heads, scale, 0)
            if rows is not None and index == len(self._layers) - 1:  # the others matter no more
                seen, x = ops.gather_rows(seen, rows), ops.gather_rows(x, rows)
            x = self._add_norm(ops, ops.linear(seen, layer.output), x, layer.output_norm)
            inner = ops.linear(ops.gelu(ops.linear(x, layer.up)), layer.down)
            x = self._add_norm(ops, inner, x, layer.down_norm)
        return x

    def _add_norm(
        self, ops: Ops[Tensor], x: Tensor, residual: Tensor, norm: _Norm[Tensor]
    ) -> Tensor:
        return ops.add_layer_norm(x, residual, norm.weight, norm.bias, self.spec.norm_eps)

    def _pack_layer(self, layer: EncoderLayerWeights, ops: Ops[Tensor]) -> _Layer[Tensor]:
        linears = (layer.qkv, layer.output, layer.up, layer.down)
        self.weight_bytes += sum(map(linear_bytes, linears))
        return _Layer(
            qkv=ops.pack_linear(layer.qkv),
            output=ops.pack_linear(layer.output),
            output_norm=_norm(ops, layer.output_norm),
            up=ops.pack_linear(layer.up),
            down=ops.pack_linear(layer.down),
            down_norm=_norm(ops, layer.down_norm),
        )


def _norm(ops: Ops[Tensor], norm: Norm) -> _Norm[Tensor]:
    return _Norm(ops.constant(norm.weight), ops.constant(norm.bias))
