"""The forward pass of Whisper's decoder, written with the ops of a kernel backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.decoder.rope import identity_table
from penstock.models.towers.audio_layers import PackedNorm
from penstock.models.whisper.spec import WhisperSpec
from penstock.models.whisper.weights import DECODER, WhisperWeights

Tensor = TypeVar("Tensor")

NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class CrossAttention(Generic[Tensor]):
    """The windows that the rows of a step attend to.

    - `inputs`: the context lengths and block tables of the windows; its chunks are those of the
      step.
    - `caches`: the keys and values of the windows, one per layer.
    """

    inputs: StepInputs[Tensor]
    caches: Sequence[LayerCache[Tensor]]


@dataclass(frozen=True, slots=True)
class _Layer(Generic[Tensor]):
    """The packed weights of one layer. `keys_values`: projects a window."""

    norm: PackedNorm[Tensor]
    qkv: Any
    output: Any
    cross_norm: PackedNorm[Tensor]
    cross_query: Any
    cross_output: Any
    keys_values: Any
    mlp_norm: PackedNorm[Tensor]
    up: Any
    down: Any


class WhisperDecoder(Generic[Tensor]):
    """Whisper's decoder whose weights are packed for one kernel backend."""

    def __init__(self, spec: WhisperSpec, weights: WhisperWeights, ops: Ops[Tensor]) -> None:
        self._spec = spec
        self._embedding, self._head = ops.pack_tied(weights.embedding())
        self._positions: Any = ops.pack_embedding(weights.positions())
        self._identity: Tensor = ops.constant(identity_table(spec.max_tokens))
        self._last_norm: PackedNorm[Tensor] = PackedNorm.read(
            ops, weights.tensors, f"{DECODER}layer_norm"
        )
        self._layers: list[_Layer[Tensor]] = [
            _layer(weights, ops, index) for index in range(spec.layers)
        ]

    def keys_values(self, ops: Ops[Tensor], window: Tensor, layer: int) -> Tensor:
        """Return the keys and values of an encoded window for one layer: [N, W] -> [N, 2 W]."""
        projected: Tensor = ops.linear(window, self._layers[layer].keys_values)
        return projected

    def forward(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        caches: Sequence[LayerCache[Tensor]],
        cross: CrossAttention[Tensor],
    ) -> Tensor:
        """Run one step over T tokens and return the logits [S, V] of the sampled tokens."""
        spec = self._spec
        heads = (spec.heads, spec.heads, spec.head_dim)
        scale = spec.head_dim**-0.5
        tokens = ops.embedding(self._embedding, inputs.tokens, 1.0)
        places = ops.embedding(self._positions, inputs.positions, 1.0)
        norms = [layer.norm for layer in self._layers] + [self._last_norm]
        x, residual = _add_norm(ops, places, tokens, norms[0])
        for index, layer in enumerate(self._layers):
            qkv = ops.linear(x, layer.qkv)
            q = ops.rope_cache(qkv, self._identity, inputs, caches[index], heads, None)
            seen = ops.attention(q, inputs, caches[index], heads, scale, 0)
            x = ops.linear(seen, layer.output)
            x, residual = _add_norm(ops, x, residual, layer.cross_norm)
            q = ops.linear(x, layer.cross_query)
            seen = ops.bidirectional_attention(
                q, cross.inputs, cross.caches[index], heads, scale, 0
            )
            if index == spec.layers - 1:  # other tokens are not needed
                seen = ops.gather_rows(seen, inputs.sample_rows)
                residual = ops.gather_rows(residual, inputs.sample_rows)
            x = ops.linear(seen, layer.cross_output)
            x, residual = _add_norm(ops, x, residual, layer.mlp_norm)
            x = ops.linear(ops.gelu(ops.linear(x, layer.up)), layer.down)
            x, residual = _add_norm(ops, x, residual, norms[index + 1])
        logits: Tensor = ops.linear(x, self._head)
        return logits


def _add_norm(
    ops: Ops[Tensor], x: Tensor, residual: Tensor, norm: PackedNorm[Tensor]
) -> tuple[Tensor, Tensor]:
    return ops.add_layer_norm(x, residual, norm.weight, norm.bias, NORM_EPS)


def _layer(weights: WhisperWeights, ops: Ops[Any], index: int) -> _Layer[Any]:
    name = f"layers.{index}."

    def linear(part: str) -> Any:
        return ops.pack_linear(weights.linear(name + part))

    def norm(part: str) -> PackedNorm[Any]:
        return PackedNorm.read(ops, weights.tensors, f"{DECODER}{name}{part}")

    return _Layer(
        norm=norm("self_attn_layer_norm"),
        qkv=ops.pack_linear(weights.qkv(index)),
        output=linear("self_attn.out_proj"),
        cross_norm=norm("encoder_attn_layer_norm"),
        cross_query=linear("encoder_attn.q_proj"),
        cross_output=linear("encoder_attn.out_proj"),
        keys_values=ops.pack_linear(weights.cross_keys_values(index)),
        mlp_norm=norm("final_layer_norm"),
        up=linear("fc1"),
        down=linear("fc2"),
    )
