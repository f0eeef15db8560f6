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
from penstock.kernels.ops_interface import Ops
from penstock.kernels.recurrent_state import LayerState
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.weights import Affine, Dense, Linear, Matrix
from penstock.models.decoder.altup import HALVED, STREAMS, AltUp, LayerAltUp
from penstock.models.decoder.attention import Attention
from penstock.models.decoder.block_specs import QueryScaling
from penstock.models.decoder.draft_head import HeadName, Ints, pack_draft_head
from penstock.models.decoder.experts_beside import ExpertsBeside
from penstock.models.decoder.feed_forward import FeedForward, pack_feed_forward
from penstock.models.decoder.layer_step import LayerStep, LoraLinears, Rotation
from penstock.models.decoder.layer_weights import LayerWeights, Weights
from penstock.models.decoder.lora_targets import linear_numbers
from penstock.models.decoder.mixer import LoadedMixer, Vector
from penstock.models.decoder.norm import Norm, pack_norm
from penstock.models.decoder.per_layer_inputs import LayerInput, PerLayerInputs
from penstock.models.decoder.residual_stream import ResidualStream
from penstock.models.decoder.rope import identity_table, query_scales, rope_table
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.quant.weight_slices import expert_bytes, linear_bytes, size_bytes

Tensor = TypeVar("Tensor")

_STORAGE_DTYPES: Final[tuple[StorageDtype, ...]] = ("f32", "f16", "i8")  # from fine to coarse

Progress = Callable[[int, int], None]
"""Called with the number of loaded layers and the total number of layers."""


@dataclass(frozen=True, slots=True)
class _Layer(Generic[Tensor]):
    """The packed blocks of one layer and their norms. A block or a norm that the layer lacks is
    None. `cache`: the layer whose KV cache it reads. `scalar`: the factor on the residual stream
    after the layer."""

    mixer: LoadedMixer[Tensor] | None
    mixer_norm: Norm[Tensor] | None
    mixer_post_norm: Norm[Tensor] | None
    feed_forward: FeedForward[Tensor] | None
    beside: ExpertsBeside[Tensor] | None
    mlp_norm: Norm[Tensor] | None
    mlp_post_norm: Norm[Tensor] | None
    cache: int
    scalar: float
    input: LayerInput[Tensor] | None
    altup: LayerAltUp[Tensor] | None


@dataclass(frozen=True, slots=True)
class SharedParts(Generic[Tensor]):
    """The packed embedding and language-model head of a decoder, and its RoPE tables: `no_rope`
    rotates nothing. An MTP head uses those of its target. `draft_head`: see `draft_head`; None:
    there is none."""

    embedding: Any
    head: Any
    rope: Tensor
    local_rope: Tensor
    no_rope: Tensor
    draft_head: Any = None


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
        shared: SharedParts[Tensor] | None = None,
        draft_ids: Ints | None = None,
    ) -> None:
        """Pack the weights layer by layer, freeing the source arrays of each layer once it is
        packed.

        - `max_model_len`: the number of rows of the RoPE table; None: the model's own context
          length.
        - `progress`: called after each layer.
        - `ranks`: communicates with the other tensor parallel ranks, if `spec` and `weights`
          describe one shard (`models.loader.tensor_parallel`).
        - `shared`: the parts of another decoder, which this one uses; None: its own are packed.
        - `draft_ids`: the tokens of the draft head, [N] ascending; None: there is none.

        Sets three public attributes. `weight_bytes`: the bytes of the source arrays, counting a
        tied head once, without the draft head. `adapter_storage_dtype`: the type to which adapters
        are rounded, as coarse as the coarsest linear layer. `shared`: the parts that an MTP head
        may use.
        """
        self.spec = spec
        self._communicator = ranks
        self.weight_bytes = 0
        self.adapter_storage_dtype: StorageDtype = "f32"
        self._linear_numbers = linear_numbers(spec)
        positions = max_model_len or spec.max_model_len
        self._draft_ids = draft_ids
        self.shared = self._pack_shared(weights, positions, ops) if shared is None else shared
        self._rope, self._local_rope = self.shared.rope, self.shared.local_rope
        self._embedding = self.shared.embedding
        self._heads: dict[HeadName, Any] = {
            "whole": self.shared.head,
            "draft": self.shared.draft_head,
        }
        self._axes = ops.constant(np.array(spec.rope.axes, np.int32))
        self._query_scales: dict[QueryScaling | None, Tensor | None] = {None: None}
        for scaling in {layer.attention.query_scaling for layer in spec.layers} - {None}:
            assert scaling is not None
            self._query_scales[scaling] = ops.constant(query_scales(scaling, positions))
        self._final_norm = pack_norm(spec, weights.final_norm(), ops)
        self._inputs, self._altup = self._pack_parts(weights, ops)
        self._layers: list[_Layer[Tensor]] = []
        self._last_mixer = max(
            (index for index, layer in enumerate(spec.layers) if layer.has_mixer), default=-1
        )
        for layer in weights.layers():
            self._layers.append(self._pack_layer(layer, ops))
            if progress is not None:
                progress(len(self._layers), len(spec.layers))

    @property
    def num_streams(self) -> int:
        """The number of residual streams."""
        return 1 if self._altup is None else STREAMS

    def forward(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        caches: Sequence[LayerCache[Tensor] | None],
        slots: AdapterSlots | None = None,
        states: Sequence[LayerState[Tensor] | None] = (),
        head: HeadName = "whole",
    ) -> Tensor:
        """Run one step over T tokens and return the logits [S, V] of the sampled tokens.

        - `caches`: one per layer, with the sizes of `DecoderSpec.caches`.
        - `slots`: the LoRA factors of all adapters, needed if a token of `inputs` uses an adapter.
        - `states`: one per layer, with the shapes of `DecoderSpec.states`; () if no layer has one.
        - `head`: "draft": the logits are those of the draft head, [S, N].
        """
        hidden = self.hidden(ops, inputs, caches, inputs.sample_rows, slots, states)
        return self._logits(ops, hidden, head)

    def forward_all(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        caches: Sequence[LayerCache[Tensor] | None],
        slots: AdapterSlots | None = None,
        states: Sequence[LayerState[Tensor] | None] = (),
        start: Tensor | None = None,
        head: HeadName = "whole",
    ) -> tuple[Tensor, Tensor]:
        """Do the same as `forward`, and also return the final hidden states [T, W] of all tokens.
        `start`: see `hidden`."""
        hidden = self.hidden(ops, inputs, caches, None, slots, states, start)
        return self._logits(ops, ops.gather_rows(hidden, inputs.sample_rows), head), hidden

    def _logits(self, ops: Ops[Tensor], hidden: Tensor, head: HeadName = "whole") -> Tensor:
        logits: Tensor = ops.linear(hidden, self._heads[head])
        if head == "whole":
            logits = self._communicator.all_gather(logits, self.spec.vocab_size)
        return ops.soft_cap(logits, self.spec.logit_cap) if self.spec.logit_cap else logits

    def hidden(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        caches: Sequence[LayerCache[Tensor] | None],
        rows: Tensor | None,
        slots: AdapterSlots | None = None,
        states: Sequence[LayerState[Tensor] | None] = (),
        start: Tensor | None = None,
    ) -> Tensor:
        """Return the final hidden states, which the language-model head reads: [S, W] of the tokens
        with the indices `rows`, or [T, W] of all tokens if `rows` is None. `inputs.media` replaces
        the embeddings of its tokens. `start`: [T, W], the input of the first layer; None: the
        embeddings."""
        deep = () if inputs.media is None else inputs.media.deep
        # The rows of `deep` are those of all tokens: the last mixer must not have dropped any.
        gathering = self._last_mixer if len(deep) <= self._last_mixer else None
        stream, embedded = self._start(ops, inputs, start)
        step = (ops, inputs, caches, slots, states)
        self._run(range(len(self._layers)), *step, stream, embedded, rows, gathering)
        if rows is not None and gathering is None:
            stream.gather(rows)
        return self._finish(ops, stream)

    def trunk(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        caches: Sequence[LayerCache[Tensor] | None],
        slots: AdapterSlots | None = None,
    ) -> tuple[Tensor, ...]:
        """Run the layers up to `DecoderSpec.last_writer`, for a step without media. Return the
        residual streams of the sampled tokens after it, each [S, W], from which `tail` goes on."""
        stream, embedded = self._start(ops, inputs, None)
        last, rows = self.spec.last_writer, inputs.sample_rows
        step = (ops, inputs, caches, slots, ())
        self._run(range(last + 1), *step, stream, embedded, rows, last)
        return stream.read(), *stream.parallel

    def tail(
        self,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        streams: Sequence[Tensor],
        caches: Sequence[LayerCache[Tensor] | None],
        slots: AdapterSlots | None = None,
    ) -> Tensor:
        """Run the layers after `DecoderSpec.last_writer` over the results of `trunk` and return the
        logits [S, V]. `inputs`: those of the sampled tokens alone; see `tail_inputs`."""
        embedded = None if self._inputs is None else self.embed(ops, inputs)
        stream = ResidualStream(ops, streams[0])
        stream.restart(streams[0], tuple(streams[1:]))
        layers = range(self.spec.last_writer + 1, len(self._layers))
        self._run(layers, ops, inputs, caches, slots, (), stream, embedded, None, None)
        return self._logits(ops, self._finish(ops, stream))

    def _start(
        self, ops: Ops[Tensor], inputs: StepInputs[Tensor], start: Tensor | None
    ) -> tuple[ResidualStream[Tensor], Tensor | None]:
        """Return the residual stream before the first layer, and the input of the per-layer inputs
        if there are any."""
        stream = ResidualStream(ops, self.embed(ops, inputs) if start is None else start)
        embedded = None if self._inputs is None else stream.read()
        if self._altup is not None:
            self._altup.start(ops, stream)
        return stream, embedded

    def _finish(self, ops: Ops[Tensor], stream: ResidualStream[Tensor]) -> Tensor:
        """Return the final hidden states, from the stream after the last layer."""
        if self._altup is not None:
            self._altup.finish(ops, stream)
        return stream.norm(self._final_norm)

    def _run(
        self,
        layers: range,
        ops: Ops[Tensor],
        inputs: StepInputs[Tensor],
        caches: Sequence[LayerCache[Tensor] | None],
        slots: AdapterSlots | None,
        states: Sequence[LayerState[Tensor] | None],
        stream: ResidualStream[Tensor],
        embedded: Tensor | None,
        rows: Tensor | None,
        gathering: int | None,
    ) -> None:
        """Run `layers` over the stream.

        - `embedded`: the input of the per-layer inputs, of all tokens.
        - `rows`: the only tokens that are needed after the mixer of layer `gathering`; None: all.
        """
        linear: LoraLinears[Tensor] = LoraLinears(ops, slots, inputs)
        rotation = self._rotation(ops, inputs)
        deep = () if inputs.media is None else inputs.media.deep
        for index in layers:
            layer = self._layers[index]
            linear.numbers = self._linear_numbers[index]
            state = states[index] if states else None
            cache = caches[layer.cache]
            scales = self._query_scales[self.spec.layers[index].attention.query_scaling]
            step = LayerStep(ops, inputs, linear, cache, state, self._rope, scales, rotation)
            if layer.altup is not None:
                layer.altup.predict(ops, stream)
            read = self._mix(step, stream, layer, rows if index == gathering else None)
            if layer.feed_forward is not None:
                self._feed_forward(step, stream, layer, read, deep[index : index + 1])
            if self._inputs is not None and embedded is not None:
                own = self._inputs.of_layer(index, ops, inputs.tokens, embedded)
                if rows is not None and gathering is not None and index >= gathering:
                    own = ops.gather_rows(own, rows)
                self._add_input(ops, stream, layer, own)
            if self.spec.layer_scalars:
                stream.scale(layer.scalar)

    def _mix(
        self,
        step: LayerStep[Tensor],
        stream: ResidualStream[Tensor],
        layer: _Layer[Tensor],
        rows: Tensor | None,
    ) -> Tensor | None:
        """Compute the mixer of a layer, if it has one, and add its result to the stream. Return the
        input that it read if the feed-forward reads it too, else None. `rows`: the only tokens that
        are needed afterwards; None: all."""
        if layer.mixer is None:
            return None
        x = self._read(stream, layer.mixer_norm)
        # Tensors that are not needed any more are not held, because a step of a GPU is large.
        read = x if self.spec.parallel or layer.altup is not None else None
        x = layer.mixer.mix(step, x)
        if rows is not None:
            x = step.ops.gather_rows(x, rows)
            if read is not None:
                read = step.ops.gather_rows(read, rows)
            stream.gather(rows)
            step.linear.gather(step.inputs)
        x = self._communicator.all_reduce(layer.mixer.project(step, x))
        stream.add(self._post_norm(step.ops, x, layer.mixer_post_norm))
        if layer.altup is not None and read is not None:
            stream.add(layer.altup.residual(step.ops, read))
            stream.scale(HALVED)
        return read if self.spec.parallel else None

    def _feed_forward(
        self,
        step: LayerStep[Tensor],
        stream: ResidualStream[Tensor],
        layer: _Layer[Tensor],
        read: Tensor | None,
        deep: Sequence[Tensor],
    ) -> None:
        """Compute the feed-forward of a layer and add its result to the stream.

        - `read`: the input of the mixer, if the feed-forward reads it too; None: it reads the
          stream.
        - `deep`: rows of media to add after the layer, at most one tensor.
        """
        assert layer.feed_forward is not None
        ops, media = step.ops, step.inputs.media
        x = self._read(stream, layer.mlp_norm) if read is None else read
        x = self._communicator.all_reduce(layer.feed_forward(step, x))
        if layer.beside is not None:
            x = layer.beside(step, x, stream, self._communicator.all_reduce)
        x = self._post_norm(ops, x, layer.mlp_post_norm)
        for rows in deep:
            assert media is not None
            x = ops.add_rows(x, rows, media.index)
        stream.add(x)

    def _add_input(
        self, ops: Ops[Tensor], stream: ResidualStream[Tensor], layer: _Layer[Tensor], own: Tensor
    ) -> None:
        """Add the per-layer input `own` [T, P] of a layer to the stream, or to the parallel streams
        that the layer did not compute."""
        assert layer.input is not None
        if layer.altup is None:
            stream.add(layer.input(ops, stream.read(), own))
            return
        added = layer.input(ops, layer.altup.correct(ops, stream), own)
        others = tuple(ops.add(one, added) for one in stream.parallel)
        stream.restart(stream.read(), others)

    def _read(self, stream: ResidualStream[Tensor], norm: Norm[Tensor] | None) -> Tensor:
        """Return the input of a block: the stream, normalized unless `norm` is None."""
        return stream.read() if norm is None else stream.norm(norm)

    def embed(self, ops: Ops[Tensor], inputs: StepInputs[Tensor]) -> Tensor:
        """Return the embeddings of the tokens and media of a step: [T, W]."""
        x = ops.embedding(self._embedding, inputs.tokens, self.spec.embedding_scale)
        if inputs.media is None:
            return x
        return ops.replace_rows(x, inputs.media.rows, inputs.media.index)

    def _rotation(self, ops: Ops[Tensor], inputs: StepInputs[Tensor]) -> Rotation[Tensor] | None:
        """Return the rotation by three positions per token, or None if tokens have one position."""
        media = inputs.media
        if media is None or media.rope_rows is None:
            return None
        time, height, width = media.rope_positions
        table = ops.mrope_rows(self._rope, time, height, width, self._axes)
        return Rotation(table, replace(inputs, positions=media.rope_rows))

    def _post_norm(self, ops: Ops[Tensor], x: Tensor, norm: Norm[Tensor] | None) -> Tensor:
        return x if norm is None else norm.of(ops, x)

    def _pack_shared(
        self, weights: Weights, positions: int, ops: Ops[Tensor]
    ) -> SharedParts[Tensor]:
        """Pack the embedding, the language-model head and the RoPE tables of `positions` rows."""
        spec = self.spec
        rope = ops.constant(rope_table(spec.rope, positions, weights.rope_factors()))
        local = rope
        if spec.local_rope is not None:
            local = ops.constant(rope_table(spec.local_rope, positions))
        no_rope = ops.constant(identity_table(positions))
        embedding, head, draft_head = self._pack_ends(weights, ops)
        return SharedParts(embedding, head, rope, local, no_rope, draft_head)

    def _pack_ends(self, weights: Weights, ops: Ops[Tensor]) -> tuple[Any, Any, Any]:
        """Pack the embedding table and the language-model head, which may be one matrix, and the
        draft head. Return all three."""
        table = weights.embedding()
        self.weight_bytes += size_bytes(table)
        head = weights.head()
        draft_head = pack_draft_head(head or Linear((table,)), self._draft_ids, ops)
        if head is None:
            return *ops.pack_tied(table), draft_head
        self.weight_bytes += linear_bytes(head)
        return ops.pack_embedding(table), ops.pack_head(head), draft_head

    def _pack_parts(
        self, weights: Weights, ops: Ops[Tensor]
    ) -> tuple[PerLayerInputs[Tensor] | None, AltUp[Tensor] | None]:
        """Pack the weights outside of layers of the blocks that only some decoders have."""
        inputs = altup = None
        if self.spec.per_layer_inputs is not None:
            inputs = PerLayerInputs(self.spec.per_layer_inputs, self.spec, weights.parts(), ops)
            self.weight_bytes += inputs.weight_bytes
        if self.spec.altup is not None:
            altup = AltUp(weights.parts(), ops)
            self.weight_bytes += altup.weight_bytes
        return inputs, altup

    def _pack_layer(self, layer: LayerWeights, ops: Ops[Tensor]) -> _Layer[Tensor]:
        index, eps = len(self._layers), self.spec.norm_eps
        own = self.spec.layers[index]
        self._count(layer, own)
        source = own.attention.cache_of
        return _Layer(
            mixer=self._pack_mixer(layer, own, ops) if own.has_mixer else None,
            mixer_norm=self._norm(layer.attention_norm, ops),
            mixer_post_norm=self._norm(layer.attention_post_norm, ops),
            feed_forward=pack_feed_forward(self.spec, own, layer, ops)
            if own.has_feed_forward
            else None,
            beside=ExpertsBeside(self.spec, own.experts, layer, ops)
            if own.experts is not None and own.experts.beside_dense
            else None,
            mlp_norm=self._norm(layer.mlp_norm, ops),
            mlp_post_norm=self._norm(layer.mlp_post_norm, ops),
            cache=index if source is None else source,
            scalar=layer.scalar,
            input=LayerInput(layer.input, self.spec.activation, eps, ops) if layer.input else None,
            altup=LayerAltUp(layer.altup, eps, ops) if layer.altup else None,
        )

    def _norm(self, weights: Vector | None, ops: Ops[Tensor]) -> Norm[Tensor] | None:
        return None if weights is None else pack_norm(self.spec, weights, ops)

    def _pack_mixer(
        self, layer: LayerWeights, own: LayerSpec, ops: Ops[Tensor]
    ) -> LoadedMixer[Tensor]:
        if own.mixer is not None:
            return own.mixer.pack(layer.mixer, self.spec, ops)
        rope = self._local_rope if own.window else self._rope
        if not own.rotary:
            rope = self.shared.no_rope
        scales = self._query_scales[own.attention.query_scaling]
        return Attention(self.spec, own, layer, rope, rope is self._rope, ops, scales)

    def _count(self, layer: LayerWeights, own: LayerSpec) -> None:
        """Add the bytes of a layer to `weight_bytes`, and make `adapter_storage_dtype` as coarse as
        its linear layers."""
        linears = (layer.qkv, layer.output_gate, layer.output, layer.gate_up, layer.down)
        held = [linear for linear in linears if linear is not None]
        if layer.shared is not None:
            held += layer.shared.linears
        if own.mixer is not None:
            held += own.mixer.linear_weights(layer.mixer)
        self.weight_bytes += sum(map(linear_bytes, held))
        self.weight_bytes += sum(
            part.size_bytes for part in (layer.input, layer.altup) if part is not None
        )
        if layer.router is not None:
            self.weight_bytes += linear_bytes(layer.router)
        if layer.experts is not None:
            self.weight_bytes += expert_bytes(layer.experts)
        kinds = (_storage_dtype_of(part) for linear in held for part in linear.parts)
        self.adapter_storage_dtype = max(
            (self.adapter_storage_dtype, *kinds), key=_STORAGE_DTYPES.index
        )


def _storage_dtype_of(part: Matrix) -> StorageDtype:
    if isinstance(part, Affine):
        return "i8"
    return "f32" if isinstance(part, Dense) and part.dtype == "f32" else "f16"
