"""The attention of a decoder layer, as `DecoderSpec` and `LayerSpec` describe it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import HeadNorm, LayerCache, StepInputs
from penstock.models.decoder.layer_step import LayerStep
from penstock.models.decoder.spec import DecoderSpec, LayerSpec

if TYPE_CHECKING:
    from penstock.models.decoder.layer_weights import LayerWeights
    from penstock.models.decoder.mixer import Vector

Tensor = TypeVar("Tensor")


class JointNorm(Generic[Tensor]):
    """RMSNorms of queries and keys that `rope_cache` does not compute: of all heads of a token
    together, or of each head after the rotation.

    A rotation does not change the mean square of a head. After the rotation, scores depend only on
    the products of the weights of queries and keys, which queries get; keys are only normalized.
    """

    def __init__(self, spec: DecoderSpec, q: Vector, k: Vector, ops: Ops[Tensor]) -> None:
        """`q`, `k`: the weights [H * D] and [K * D] of all heads, or [D] of each head."""
        self._spec = spec
        self._after: Tensor | None = None
        rotated = spec.qk_norm_form == "rotated"
        if rotated:
            self._after = ops.constant(np.tile(q * k, spec.num_heads))
            k = np.ones(spec.kv_rows, np.float32)
        self._q = None if rotated else ops.constant(q)
        self._k = ops.constant(k)

    def before_rotation(self, ops: Ops[Tensor], qkv: Tensor) -> Tensor:
        """Normalize queries and keys in place and return qkv: [T, (H + 2 K) * D]."""
        spec = self._spec
        if self._q is None:
            return ops.norm_columns(qkv, self._k, spec.q_rows, spec.head_dim, spec.norm_eps)
        qkv = ops.norm_columns(qkv, self._q, 0, spec.q_rows, spec.norm_eps)
        return ops.norm_columns(qkv, self._k, spec.q_rows, spec.kv_rows, spec.norm_eps)

    def after_rotation(self, ops: Ops[Tensor], q: Tensor) -> Tensor:
        """Normalize rotated queries in place and return them: [T, H * D]."""
        if self._after is None:
            return q
        return ops.norm_columns(q, self._after, 0, self._spec.head_dim, self._spec.norm_eps)


class Attention(Generic[Tensor]):
    """A packed attention block. See `LoadedMixer`.

    - `rope`: the RoPE table of the layer.
    - `turns_by_media`: media positions replace the rows of `rope`.
    - `query_scales`: the factor on the queries at each position, or None.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        layer: LayerSpec,
        weights: LayerWeights,
        rope: Tensor,
        turns_by_media: bool,
        ops: Ops[Tensor],
        query_scales: Tensor | None = None,
    ) -> None:
        assert weights.qkv is not None and weights.output is not None
        self._spec = spec
        self._layer = layer
        self._heads = spec.heads(layer)
        self._scale = spec.attention_scale or self._heads[2] ** -0.5
        self._rope = rope
        self._turns_by_media = turns_by_media
        self._query_scales = query_scales
        self._qkv = ops.pack_linear(weights.qkv)
        self._output = ops.pack_linear(weights.output)
        self._gate = None if weights.output_gate is None else ops.pack_linear(weights.output_gate)
        self._sinks = None if weights.sinks is None else ops.constant(weights.sinks)
        self._head_norm: HeadNorm | None = None
        self._joint_norm: JointNorm[Tensor] | None = None
        q_norm, k_norm = weights.q_norm, weights.k_norm
        if layer.attention.unit_heads:
            q_norm = k_norm = np.ones(self._heads[2], np.float32)
        if q_norm is not None and spec.qk_norm_form == "head":
            k_weight = None if k_norm is None else ops.constant(k_norm)
            self._head_norm = HeadNorm(ops.constant(q_norm), k_weight, spec.norm_eps)
        elif q_norm is not None and k_norm is not None:
            self._joint_norm = JointNorm(spec, q_norm, k_norm, ops)

    def mix(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute attention without the output projection: [T, W] -> [T, H * D]."""
        y = self._attend(step, x)
        if self._gate is None:
            return y
        return step.ops.sigmoid_mul(y, step.linear(x, self._gate, "output_gate"))

    def _attend(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        spec, layer, ops, cache = self._spec, self._layer, step.ops, step.cache
        assert cache is not None
        q = self._queries(step, step.linear(x, self._qkv, "qkv"), cache)
        if self._joint_norm is not None:
            q = self._joint_norm.after_rotation(ops, q)
        if self._query_scales is not None:
            q = ops.scale_rows(q, self._query_scales, step.inputs.positions)
        if spec.bidirectional:
            return ops.bidirectional_attention(
                q, step.inputs, cache, self._heads, self._scale, layer.window
            )
        return ops.attention(
            q,
            self._seen(step.inputs),
            cache,
            self._heads,
            self._scale,
            layer.reach,
            self._sinks,
            spec.attention_cap,
        )

    def _seen(self, inputs: StepInputs[Tensor]) -> StepInputs[Tensor]:
        """Return the inputs that say which tokens a token sees in this layer."""
        everywhere = self._spec.media_visibility == "all" or self._layer.window
        if everywhere or inputs.media is None:
            return inputs
        return replace(inputs, media=replace(inputs.media, visible=None))

    def _queries(self, step: LayerStep[Tensor], qkv: Tensor, cache: LayerCache[Tensor]) -> Tensor:
        """Return the normalized and rotated queries: [T, H * D]. Store keys and values in `cache`,
        unless it is that of another layer."""
        ops, eps, norm = step.ops, self._spec.norm_eps, self._head_norm
        if self._joint_norm is not None:
            qkv = self._joint_norm.before_rotation(ops, qkv)
        table, positioned = self._rope, step.inputs
        if step.rotation is not None and self._turns_by_media:
            table, positioned = step.rotation.table, step.rotation.inputs
        if self._layer.attention.cache_of is not None:
            assert norm is not None
            return ops.norm_rope(qkv, norm.q_weight, table, positioned.positions, eps)
        if self._spec.value_norm:
            qkv = ops.norm_values(qkv, self._heads, eps)
        return ops.rope_cache(qkv, table, positioned, cache, self._heads, norm)

    def project(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the output projection: [T, H * D] -> [T, W]."""
        return step.linear(x, self._output, "output")
