"""The forward pass of an encoder, written with the ops of a kernel backend.

Each sequence is computed in one step, so one KV cache serves all layers: a layer writes its keys
and values and reads them before the next layer overwrites them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.decoder.rope import identity_table, rope_table
from penstock.models.encoder.relative_position_bias import relative_position_bias
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.weights import EncoderLayerWeights, EncoderWeights, Norm

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class PackedNorm(Generic[Tensor]):
    """A LayerNorm's weight and bias as tensors of a backend, [W] each."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class _Layer(Generic[Tensor]):
    """The packed weights of one layer, with matrices as returned by `Ops.pack_linear`."""

    qkv: Any
    rope: Tensor
    window: int
    output: Any
    attention_norm: PackedNorm[Tensor]
    up: Any
    down: Any
    mlp_norm: PackedNorm[Tensor]


class Encoder(Generic[Tensor]):
    """An encoder whose weights are packed for one kernel backend. `max_model_len`: the maximum
    sequence length in tokens."""

    def __init__(
        self, spec: EncoderSpec, weights: EncoderWeights, ops: Ops[Tensor], max_model_len: int
    ) -> None:
        self.spec = spec
        word_embeddings, positions = weights.word_embeddings(), weights.positions(max_model_len)
        self._word_embeddings = ops.pack_embedding(word_embeddings)
        self._positions: Any = None
        if positions is not None:
            self._positions = ops.pack_embedding(positions)
        self._embedding_norm: PackedNorm[Tensor] = pack_norm(ops, weights.embedding_norm())
        biases = weights.relative_biases()
        self._bias: Tensor | None = None
        if biases is not None:
            self._bias = ops.constant(relative_position_bias(biases))
        self._rope, self._local_rope = self._ropes(ops, max_model_len)
        self._layers: list[_Layer[Tensor]] = []
        for index in range(spec.layers):
            self._layers.append(self._pack_layer(index, weights.layer(index), ops))

    def hidden(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        caches: Sequence[LayerCache[Tensor]],
        rows: Tensor | None,
    ) -> Tensor:
        """Return the last layer's states: [S, W] of the tokens with the indices `rows`, or [T, W]
        of all tokens if `rows` is None. `caches`: one per layer; all may be the same cache."""
        spec = self.spec
        heads = (spec.num_heads, spec.num_heads, spec.head_dim)
        x, residual = self._embed(ops, inputs)
        for index, (layer, cache) in enumerate(zip(self._layers, caches, strict=True)):
            qkv = ops.linear(x, layer.qkv)
            q = ops.rope_cache(qkv, layer.rope, inputs, cache, heads, None)
            seen = self._attend(ops, q, inputs, cache, layer.window)
            if rows is not None and index == len(self._layers) - 1:  # other tokens are not needed
                seen, residual = ops.gather_rows(seen, rows), ops.gather_rows(residual, rows)
            x = ops.linear(seen, layer.output)
            x, residual = self._add_norm(ops, x, residual, layer.attention_norm)
            x = ops.linear(self._activate(ops, ops.linear(x, layer.up)), layer.down)
            x, residual = self._add_norm(ops, x, residual, layer.mlp_norm)
        return x

    def _embed(self, ops: Ops[Tensor], inputs: StepInputs[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the normalized sum of word, position and token type embeddings, and the first
        residual, [T, W] each."""
        norm, eps = self._embedding_norm, self.spec.norm_eps
        total = ops.embedding(self._word_embeddings, inputs.tokens, 1.0)
        if self._positions is None:
            normed = ops.layer_norm(total, norm.weight, norm.bias, eps)
        else:
            places = ops.embedding(self._positions, inputs.positions, 1.0)
            normed, total = ops.add_layer_norm(total, places, norm.weight, norm.bias, eps)
        return normed, total if self.spec.embedding_residual else normed

    def _attend(
        self,
        ops: Ops[Tensor],
        q: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Tensor],
        window: int,
    ) -> Tensor:
        spec = self.spec
        heads, scale = (spec.num_heads, spec.num_heads, spec.head_dim), spec.head_dim**-0.5
        if spec.causal:
            return ops.attention(q, inputs, cache, heads, scale, window)
        return ops.bidirectional_attention(q, inputs, cache, heads, scale, window, self._bias)

    def _add_norm(
        self, ops: Ops[Tensor], x: Tensor, residual: Tensor, norm: PackedNorm[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Add `x` to the residual and normalize. Return the input of the next block and the new
        residual."""
        normed, total = ops.add_layer_norm(x, residual, norm.weight, norm.bias, self.spec.norm_eps)
        return normed, total if self.spec.pre_norm else normed

    def _activate(self, ops: Ops[Tensor], x: Tensor) -> Tensor:
        match self.spec.activation:
            case "gelu":
                return ops.gelu(x)
            case "gelu_tanh":
                return ops.gelu_tanh(x)
            case "quick_gelu":
                return ops.quick_gelu(x)
            case "gelu_mul":
                return ops.gelu_mul(x)
            case "silu_mul":
                return ops.silu_mul(x)

    def _ropes(self, ops: Ops[Tensor], positions: int) -> tuple[Tensor, Tensor]:
        """Return the RoPE tables of the layers with full attention and of the layers with a
        window."""
        spec = self.spec
        assert spec.rope is None or spec.segments == 1, "no family has both"
        if spec.rope is None:
            table = ops.constant(identity_table(positions * spec.segments))
            return table, table
        table = ops.constant(rope_table(spec.rope, positions))
        if spec.local_rope is None:
            return table, table
        return table, ops.constant(rope_table(spec.local_rope, positions))

    def _pack_layer(
        self, index: int, layer: EncoderLayerWeights, ops: Ops[Tensor]
    ) -> _Layer[Tensor]:
        window = self.spec.windows[index]
        return _Layer(
            qkv=ops.pack_linear(layer.qkv),
            rope=self._local_rope if window else self._rope,
            window=window,
            output=ops.pack_linear(layer.output),
            attention_norm=pack_norm(ops, layer.attention_norm),
            up=ops.pack_linear(layer.up),
            down=ops.pack_linear(layer.down),
            mlp_norm=pack_norm(ops, layer.mlp_norm),
        )


def pack_norm(ops: Ops[Tensor], norm: Norm) -> PackedNorm[Tensor]:
    """Convert a norm to tensors of a backend."""
    return PackedNorm(ops.constant(norm.weight), ops.constant(norm.bias))
