"""The forward pass of a decoder, written with the ops of a kernel backend.

All backends run this code: eager native kernels, the recorded plan, the PyTorch reference and
Triton. It does not depend on the backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import numpy as np

from penstock.kernels.communicator import SINGLE_RANK, Communicator
from penstock.kernels.lora_slots import AdapterSlots, StorageDtype
from penstock.kernels.ops_interface import AdapterRows, HeadNorm, LayerCache, Ops, StepInputs
from penstock.kernels.weights import Affine, Dense, Matrix
from penstock.models.decoder.lora_targets import DOWN, GATE_UP, OUTPUT, QKV, first_linears
from penstock.models.decoder.rope import identity_table, rope_table
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.weights import LayerWeights, Vector, Weights
from penstock.quant.weight_slices import expert_bytes, linear_bytes, size_bytes

Tensor = TypeVar("Tensor")

_STORAGE_DTYPES: Final[tuple[StorageDtype, ...]] = ("f32", "f16", "i8")  # from fine to coarse

Progress = Callable[[int, int], None]
"""Called with the number of loaded layers and the total number of layers."""


@dataclass(frozen=True, slots=True)
class _Layer(Generic[Tensor]):
    """The packed weights of one layer: matrices as `Ops` packed them, norms and RoPE tables as
    tensors. A mixture of experts has `router` and `experts`, a dense layer `gate_up` and `down`;
    the other two are None."""

    spec: LayerSpec
    attention_norm: Tensor
    qkv: Any
    head_norm: HeadNorm | None
    rope: Tensor
    output: Any
    mlp_norm: Tensor
    gate_up: Any
    down: Any
    router: Any
    experts: Any
    attention_post_norm: Tensor | None
    mlp_post_norm: Tensor | None
    sinks: Tensor | None


@dataclass(frozen=True, slots=True)
class _Rotation(Generic[Tensor]):
    """A RoPE table with one row per token of a step. `inputs`: the step with the rows of this table
    as positions."""

    table: Tensor
    inputs: StepInputs[Tensor]


class _LoraLinears(Generic[Tensor]):
    """Computes the linear layers of a step and adds the LoRA updates.

    - `first`: the number of the current decoder layer's first linear layer.
    - `rows`: the adapter slot of each token; None if no token uses an adapter.
    """

    def __init__(
        self, ops: Ops[Tensor], slots: AdapterSlots | None, rows: AdapterRows[Tensor] | None
    ) -> None:
        self._ops = ops
        self._slots = slots
        self.rows = rows
        self.first = 0

    def __call__(self, x: Tensor, weight: Any, which: int) -> Tensor:
        y = self._ops.linear(x, weight)
        if self._slots is None or self.rows is None:
            return y
        return self._ops.lora(x, y, self._slots, self.first + which, self.rows)


class Decoder(Generic[Tensor]):
    """A decoder whose weights are packed for one kernel backend."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: Weights,
        ops: Ops[Tensor],
        max_model_len: int | None = None,
        progress: Progress | None = None,
        ranks: Communicator[Tensor] = SINGLE_RANK,
    ) -> None:
        """Pack the weights layer by layer, freeing the source arrays of each layer once it is
        packed.

        - `max_model_len`: the number of rows of the RoPE table; None: the model's own context
          length.
        - `progress`: called after each layer.
        - `ranks`: communicates with the other tensor parallel ranks, if `spec` and `weights`
          describe one shard (`models.loader.tensor_parallel`).

        Sets two public attributes. `weight_bytes`: the bytes of the source arrays, counting a tied
        head once. `adapter_storage_dtype`: the type to which adapters are rounded, as coarse as the
        coarsest linear layer.
        """
        self.spec = spec
        self._communicator = ranks
        self.weight_bytes = 0
        self.adapter_storage_dtype: StorageDtype = "f32"
        self._first_linears = first_linears(spec)
        positions = max_model_len or spec.max_model_len
        self._rope = ops.constant(rope_table(spec.rope, positions, weights.rope_factors()))
        self._local_rope = self._rope
        if spec.local_rope is not None:
            self._local_rope = ops.constant(rope_table(spec.local_rope, positions))
        self._no_rope = ops.constant(identity_table(positions))
        self._axes = ops.constant(np.array(spec.rope.axes, np.int32))
        self._embedding, self._head = self._pack_ends(weights, ops)
        self._final_norm = ops.constant(weights.final_norm())
        self._layers: list[_Layer[Tensor]] = []
        for layer in weights.layers():
            self._layers.append(self._pack_layer(layer, ops))
            if progress is not None:
                progress(len(self._layers), len(spec.layers))

    def forward(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        caches: list[LayerCache[Tensor]],
        slots: AdapterSlots | None = None,
    ) -> Tensor:
        """Run one step over T tokens and return the logits [S, V] of the sampled tokens. `caches`:
        one per layer. `slots`: the LoRA factors of all adapters, needed if a token of `inputs` uses
        an adapter."""
        states = self.hidden(ops, inputs, caches, inputs.sample_rows, slots)
        logits: Tensor = ops.linear(states, self._head)
        return self._communicator.all_gather(logits, self.spec.vocab_size)

    def hidden(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        caches: Sequence[LayerCache[Tensor]],
        rows: Tensor | None,
        slots: AdapterSlots | None = None,
    ) -> Tensor:
        """Return the final hidden states, which the language-model head reads: [S, W] of the tokens
        with the indices `rows`, or [T, W] of all tokens if `rows` is None. `inputs.media` replaces
        the embeddings of its tokens."""
        spec = self.spec
        linear: _LoraLinears[Tensor] = _LoraLinears(ops, slots, inputs.adapters)
        rotation = self._rotation(ops, inputs)
        deep = () if inputs.media is None else inputs.media.deep
        # The rows of `deep` are those of all tokens: the last layer must not have dropped any.
        gathered = len(self._layers) - 1 if len(deep) < len(self._layers) else None
        x = residual = self._embed(ops, inputs)
        for index, (layer, cache) in enumerate(zip(self._layers, caches, strict=True)):
            if index == 0:
                x = ops.rms_norm(x, layer.attention_norm, spec.norm_eps)
            else:
                x, residual = ops.add_rms_norm(x, residual, layer.attention_norm, spec.norm_eps)
            linear.first = self._first_linears[index]
            x = self._attend(ops, linear, x, layer, inputs, cache, rotation)
            if rows is not None and index == gathered:  # other tokens are not needed
                x = ops.gather_rows(x, rows)
                residual = ops.gather_rows(residual, rows)
                linear.rows = inputs.sampled_adapters
            x = self._communicator.all_reduce(linear(x, layer.output, OUTPUT))
            x = self._post_norm(ops, x, layer.attention_post_norm)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, spec.norm_eps)
            x = self._communicator.all_reduce(self._feed_forward(ops, linear, x, layer))
            x = self._post_norm(ops, x, layer.mlp_post_norm)
            if inputs.media is not None and index < len(deep):
                x = ops.add_rows(x, deep[index], inputs.media.index)
        if rows is not None and gathered is None:
            x, residual = ops.gather_rows(x, rows), ops.gather_rows(residual, rows)
        states, _ = ops.add_rms_norm(x, residual, self._final_norm, spec.norm_eps)
        return states

    def _embed(self, ops: Ops[Tensor], inputs: StepInputs[Tensor]) -> Tensor:
        x = ops.embedding(self._embedding, inputs.tokens, self.spec.embedding_scale)
        if inputs.media is None:
            return x
        return ops.replace_rows(x, inputs.media.rows, inputs.media.index)

    def _rotation(self, ops: Ops[Tensor], inputs: StepInputs[Tensor]) -> _Rotation[Tensor] | None:
        """Return the rotation by three positions per token, or None if tokens have one position."""
        media = inputs.media
        if media is None or media.rope_rows is None:
            return None
        time, height, width = media.rope_positions
        table = ops.mrope_rows(self._rope, time, height, width, self._axes)
        return _Rotation(table, replace(inputs, positions=media.rope_rows))

    def _attend(
        self,
        ops: Ops[Tensor],
        linear: _LoraLinears[Tensor],
        x: Tensor,
        layer: _Layer[Tensor],
        inputs: StepInputs[Tensor],
        cache: LayerCache[Tensor],
        rotation: _Rotation[Tensor] | None,
    ) -> Tensor:
        """Compute attention, without the output projection: [T, W] -> [T, H * D]."""
        spec = self.spec
        heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim)
        scale = spec.attention_scale or spec.head_dim**-0.5
        qkv = linear(x, layer.qkv, QKV)
        table, positioned = layer.rope, inputs
        if rotation is not None and layer.rope is self._rope:
            table, positioned = rotation.table, rotation.inputs
        q = ops.rope_cache(qkv, table, positioned, cache, heads, layer.head_norm)
        if spec.bidirectional:
            return ops.bidirectional_attention(q, inputs, cache, heads, scale, layer.spec.window)
        return ops.attention(q, inputs, cache, heads, scale, layer.spec.window, layer.sinks)

    def _feed_forward(
        self, ops: Ops[Tensor], linear: _LoraLinears[Tensor], x: Tensor, layer: _Layer[Tensor]
    ) -> Tensor:
        """Compute the feed-forward or the mixture of experts: [T, W] -> [T, W]."""
        experts = layer.spec.experts
        if experts is None:
            inner = self._activate(ops, linear(x, layer.gate_up, GATE_UP))
            return linear(inner, layer.down, DOWN)
        logits = ops.linear(x, layer.router)
        chosen, shares = ops.route_experts(logits, experts.per_token, experts.renormalize)
        return ops.experts(x, chosen, shares, layer.experts)

    def _activate(self, ops: Ops[Tensor], gate_up: Tensor) -> Tensor:
        if self.spec.activation == "gelu_tanh":
            return ops.gelu_tanh_mul(gate_up)
        return ops.silu_mul(gate_up)

    def _post_norm(self, ops: Ops[Tensor], x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else ops.rms_norm(x, weight, self.spec.norm_eps)

    def _pack_ends(self, weights: Weights, ops: Ops[Tensor]) -> tuple[Any, Any]:
        """Pack the embedding table and the language-model head, which may be one matrix. Return
        both."""
        table = weights.embedding()
        self.weight_bytes += size_bytes(table)
        head = weights.head()
        if head is None:
            return ops.pack_tied(table)
        self.weight_bytes += linear_bytes(head)
        return ops.pack_embedding(table), ops.pack_head(head)

    def _pack_layer(self, layer: LayerWeights, ops: Ops[Tensor]) -> _Layer[Tensor]:
        own = self.spec.layers[len(self._layers)]
        linears = (layer.qkv, layer.output, layer.gate_up, layer.down, layer.router)
        held = [linear for linear in linears if linear is not None]
        self.weight_bytes += sum(map(linear_bytes, held))
        if layer.experts is not None:
            self.weight_bytes += expert_bytes(layer.experts)
        parts = [part for linear in held if linear is not layer.router for part in linear.parts]
        self.adapter_storage_dtype = max(
            self.adapter_storage_dtype, *map(_storage_dtype_of, parts), key=_STORAGE_DTYPES.index
        )
        head_norm = None
        if layer.q_norm is not None and layer.k_norm is not None:
            head_norm = HeadNorm(
                ops.constant(layer.q_norm), ops.constant(layer.k_norm), self.spec.norm_eps
            )
        rope = self._local_rope if own.window else self._rope
        return _Layer(
            spec=own,
            attention_norm=ops.constant(layer.attention_norm),
            qkv=ops.pack_linear(layer.qkv),
            head_norm=head_norm,
            rope=rope if own.rotary else self._no_rope,
            output=ops.pack_linear(layer.output),
            mlp_norm=ops.constant(layer.mlp_norm),
            gate_up=None if layer.gate_up is None else ops.pack_linear(layer.gate_up),
            down=None if layer.down is None else ops.pack_linear(layer.down),
            router=None if layer.router is None else ops.pack_head(layer.router),
            experts=None if layer.experts is None else ops.pack_experts(layer.experts),
            attention_post_norm=_constant(ops, layer.attention_post_norm),
            mlp_post_norm=_constant(ops, layer.mlp_post_norm),
            sinks=_constant(ops, layer.sinks),
        )


def _storage_dtype_of(part: Matrix) -> StorageDtype:
    if isinstance(part, Affine):
        return "i8"
    return "f32" if isinstance(part, Dense) and part.dtype == "f32" else "f16"


def _constant(ops: Ops[Tensor], weight: Vector | None) -> Tensor | None:
    return None if weight is None else ops.constant(weight)
