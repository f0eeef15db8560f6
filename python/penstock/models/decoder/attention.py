"""The attention of a decoder layer, as `DecoderSpec` and `LayerSpec` describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.kernels.ops_interface import HeadNorm, Ops
from penstock.models.decoder.layer_step import LayerStep
from penstock.models.decoder.lora_targets import OUTPUT, QKV
from penstock.models.decoder.spec import DecoderSpec, LayerSpec

if TYPE_CHECKING:
    from penstock.models.decoder.weights import LayerWeights

Tensor = TypeVar("Tensor")


class Attention(Generic[Tensor]):
    """A packed attention block. See `LoadedMixer`.

    - `rope`: the RoPE table of the layer.
    - `turns_by_media`: media positions replace the rows of `rope`.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        layer: LayerSpec,
        weights: LayerWeights,
        rope: Tensor,
        turns_by_media: bool,
        ops: Ops[Tensor],
    ) -> None:
        assert weights.qkv is not None and weights.output is not None
        self._spec = spec
        self._layer = layer
        self._rope = rope
        self._turns_by_media = turns_by_media
        self._qkv = ops.pack_linear(weights.qkv)
        self._output = ops.pack_linear(weights.output)
        self._gate = None if weights.output_gate is None else ops.pack_linear(weights.output_gate)
        self._sinks = None if weights.sinks is None else ops.constant(weights.sinks)
        self._head_norm = None
        if weights.q_norm is not None and weights.k_norm is not None:
            self._head_norm = HeadNorm(
                ops.constant(weights.q_norm), ops.constant(weights.k_norm), spec.norm_eps
            )

    def mix(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute attention without the output projection: [T, W] -> [T, H * D]."""
        y = self._attend(step, x)
        return y if self._gate is None else step.ops.sigmoid_mul(y, step.ops.linear(x, self._gate))

    def _attend(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        spec, ops, cache, window = self._spec, step.ops, step.cache, self._layer.window
        assert cache is not None
        heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
        scale = spec.attention_scale or spec.head_dim**-0.5
        qkv = step.linear(x, self._qkv, QKV)
        table, positioned = self._rope, step.inputs
        if step.rotation is not None and self._turns_by_media:
            table, positioned = step.rotation.table, step.rotation.inputs
        q = ops.rope_cache(qkv, table, positioned, cache, heads, self._head_norm)
        if spec.bidirectional:
            return ops.bidirectional_attention(q, step.inputs, cache, heads, scale, window)
        return ops.attention(q, step.inputs, cache, heads, scale, window, self._sinks)

    def project(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the output projection: [T, H * D] -> [T, W]."""
        return step.linear(x, self._output, OUTPUT)
