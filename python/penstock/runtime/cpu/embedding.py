"""The CPU runtime of embedding models and rerankers: computes vectors or scores of whole sequences.
Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.base.resources import available_cores
from penstock.config import CPU_STEP_SIZES, EngineSettings, StepSizes, read_environment
from penstock.kernels.lora_slots import AdapterSlots
from penstock.kernels.native import NativeOps, PlanOps, Pool, plan_arguments
from penstock.kernels.step_inputs import MediaRows, StepInputs
from penstock.models.decoder.decoder import Decoder, Progress
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.embedding.embedder import Embedder
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.loader.model_loader import LoadedEmbedder
from penstock.models.media.prepared import MediaKind
from penstock.runtime.adapters import RuntimeAdapters, SlotAdapters, slot_adapters
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.cpu.embedding_inputs import (
    PooledToken,
    SequenceMedia,
    max_blocks,
    whole_sequences,
    with_media,
)
from penstock.runtime.cpu.isa_selection import select_isas
from penstock.runtime.cpu.kv_cache import KvCache
from penstock.runtime.cpu.media_plans import MediaPlans, rows_of
from penstock.runtime.cpu.native import check_block_size, check_head_dim, finish_together
from penstock.runtime.media import RuntimeMedia, TowerMedia, tower_media
from penstock.runtime.media_memory import media_memory
from penstock.runtime.media_rows import MediaTable
from penstock.runtime.memory import (
    MemoryPlan,
    lora_buffer_bytes,
    lora_bytes,
    refuse_8_bit_cache,
    refuse_excess,
)

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

DEFAULT_MAX_CONTEXT = 8192
"""Largest default context in tokens. A sequence is computed in one step, whose memory grows with
its length; `max_model_len` can allow more."""


class EmbeddingInfo(msgspec.Struct, frozen=True):
    """Describes a loaded embedding model or reranker.

    `model_id`, `fingerprint`: name, and identification of its weights and arithmetic.
    `max_model_len`: most tokens of a sequence.
    `step_tokens`, `max_rows`: most tokens and most sequences of a step.
    `width`: numbers per embedding.
    `weight_bytes`: size of the packed weights.
    `memory_bytes`: sum of the memory formula.
    `lone_kinds`: kinds of media of which one item without tokens is a sequence.
    """

    model_id: str
    fingerprint: str
    vocab_size: int
    max_model_len: int
    step_tokens: int
    max_rows: int
    width: int
    weight_bytes: int
    memory_bytes: int
    lone_kinds: frozenset[MediaKind] = frozenset()


class EmbeddingRuntime(Protocol):
    """A loaded embedding model or reranker. Not thread-safe: all calls must come from one
    thread."""

    @property
    def info(self) -> EmbeddingInfo: ...

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, in one line."""

    @property
    def adapters(self) -> RuntimeAdapters | None:
        """The adapter slots. None without LoRA settings, and for encoders."""

    @property
    def media(self) -> RuntimeMedia | None:
        """The towers, or None for a model that reads only text."""

    def embed(
        self,
        sequences: Sequence[Sequence[int]],
        slots: Sequence[int] = (),
        second_starts: Sequence[int] = (),
        media: Sequence[SequenceMedia] = (),
    ) -> Floats:
        """Compute the vectors [R, W] of `sequences`, valid until the next call.

        `sequences`: token ids within the vocabulary. No sequence is empty unless it is an item of
        `lone_kinds`, and together they fit one step.
        `slots`: adapter slot of each sequence, negative for none; empty if no sequence has an
        adapter.
        `second_starts`: start of the second text of each sequence, or its length if it has none;
        empty if all sequences are single texts.
        `media`: the media of each sequence, whose items are encoded; empty if no sequence has any.
        """

    def close(self) -> None:
        """Release memory and threads. No other method may be called afterwards."""


class NativeEmbedding:
    """An `EmbeddingRuntime` on a CPU.

    It records the step as a plan and, with LoRA settings, a second plan with adapters, which uses
    the same memory. Plans with media are recorded when they are first needed.

    `available`: bytes of memory that the model must fit, None for no check.
    `home`: folder of the saved ISA selections, None for PENSTOCK_HOME.

    Raises ModelError if the model does not fit or the kernels do not support it.
    """

    def __init__(
        self,
        model: LoadedEmbedder,
        weight_bytes: int,
        settings: EngineSettings,
        available: int | None = None,
        progress: Progress | None = None,
        home: Path | None = None,
    ) -> None:
        check_block_size(settings.block_size)
        check_head_dim(model.model_id, model.spec.head_dim)
        memory = plan_embedding(model, weight_bytes, settings, available)
        self._block_size = settings.block_size
        spec = model.spec
        paired = isinstance(spec, EncoderSpec) and spec.segments > 1
        self._second_offset = memory.max_model_len if paired else 0
        self._pooled_token: PooledToken = "first" if model.pooler.pooling == "cls" else "last"
        isas = select_isas(model, memory.cache, settings, home or read_environment().home)
        self._ops = NativeOps.eager(Pool(settings.threads or available_cores()), isas)
        (self._cache,) = KvCache(memory.cache).present
        max_rows = embedding_rows(memory.sizes, memory.step_tokens)
        self.adapters: SlotAdapters | None = None
        self.media: TowerMedia[Any] | None = None
        self._memory, self._max_rows = memory, max_rows
        try:
            self.media = tower_media(model, self._ops, rows_of)
            tower_bytes = self._ops.packed_bytes
            embedder: Embedder[Any] = Embedder(model, self._ops, memory.max_model_len, progress)
            packed_bytes = self._ops.packed_bytes - tower_bytes
            self._embedder = embedder
            if isinstance(embedder.body, Decoder):
                self.adapters = slot_adapters(
                    embedder.body, self._ops, memory.adapter_bytes, settings
                )
            recorded = [self._record(None)]
            if self.adapters is not None:
                recorded.append(self._record(self.adapters.slots))
            self._plan, *adapted = finish_together(recorded)
            self._adapter_plan: Any = adapted[0] if adapted else None
            self._media_plans = MediaPlans(self._plan, self._record)
        except ValueError as refusal:
            raise ModelError(
                f"{model.model_id}: not supported by the CPU kernels: {refusal}"
            ) from None
        taken = replace(
            memory,
            weight_bytes=packed_bytes,
            buffer_bytes=int(self._plan.arena_bytes),
        )
        self.info = EmbeddingInfo(
            model_id=model.model_id,
            fingerprint=f"{model.fingerprint}-{isas.arithmetic}",
            vocab_size=model.spec.vocab_size,
            max_model_len=memory.max_model_len,
            step_tokens=memory.step_tokens,
            max_rows=max_rows,
            width=embedder.width,
            weight_bytes=packed_bytes + memory.media.tower_bytes,
            memory_bytes=taken.total_bytes,
        )
        self.report = taken.formula()
        self._table: MediaTable | None = None
        if self.media is not None and isinstance(spec, DecoderSpec):
            self._table = MediaTable(
                self.media.encoded,
                max_rows,
                memory.step_tokens,
                spec.hidden_size,
                has_axes=bool(spec.rope.axes),
            )

    def embed(
        self,
        sequences: Sequence[Sequence[int]],
        slots: Sequence[int] = (),
        second_starts: Sequence[int] = (),
        media: Sequence[SequenceMedia] = (),
    ) -> Floats:
        """Compute the vectors of `sequences`, with the plan for steps with or without adapters and
        media. See `EmbeddingRuntime.embed`."""
        inputs = self._inputs(sequences, slots, second_starts)
        if media and self._table is not None:
            inputs = with_media(inputs, media, self._table)
        if inputs.media is not None:
            own = None if self.adapters is None or inputs.adapters is None else self.adapters.slots
            plan = self._media_plans.get(own, inputs.media)
        else:
            plan = self._plan if inputs.adapters is None else self._adapter_plan
        vectors: Floats = plan.run(*plan_arguments(inputs))
        return vectors

    def eager_embed(
        self,
        sequences: Sequence[Sequence[int]],
        slots: Sequence[int] = (),
        second_starts: Sequence[int] = (),
    ) -> Floats:
        """Compute the result of `embed` kernel by kernel instead of replaying a plan, to debug the
        plan."""
        inputs = self._inputs(sequences, slots, second_starts)
        adapter_slots = None if self.adapters is None else self.adapters.slots
        vectors: Floats = self._embedder.forward(self._ops, inputs, self._cache, adapter_slots)
        return vectors

    def close(self) -> None:
        """Release the plans, which hold the weights and the cache."""
        del self._plan, self._adapter_plan, self._media_plans
        del self._embedder, self._cache, self.adapters, self.media, self._table

    def _inputs(
        self,
        sequences: Sequence[Sequence[int]],
        slots: Sequence[int],
        second_starts: Sequence[int],
    ) -> StepInputs[npt.NDArray[np.int32]]:
        return whole_sequences(
            *(sequences, self._block_size, self._pooled_token, slots),
            *(second_starts, self._second_offset),
        )

    def _record(
        self, slots: AdapterSlots | None, media: MediaRows[Ints] | None = None
    ) -> tuple[PlanOps, Any]:
        blocks = -(-self._memory.max_model_len // self._block_size)
        sizes = (self._memory.step_tokens, self._max_rows, self._max_rows, blocks)
        recorder = self._ops.recorder(*sizes, adapters=slots is not None, media=media)
        vectors = self._embedder.forward(recorder, recorder.inputs, self._cache, slots)
        return recorder, vectors


def embedding_rows(sizes: StepSizes, step_tokens: int) -> int:
    """Return the largest number of sequences of a step."""
    return min(sizes.max_num_seqs, step_tokens)


def plan_embedding(
    model: LoadedEmbedder, weight_bytes: int, settings: EngineSettings, available: int | None
) -> MemoryPlan:
    """Return the memory plan of `model` within `available` bytes (None: not checked).

    The KV cache holds the tokens of one step for one layer. `plan_memory` describes the memory
    limit of adapters. Raises ModelError with the numbers if the model does not fit.
    """
    refuse_8_bit_cache(settings, "an embedding model")
    spec = model.spec
    wanted = settings.max_model_len or min(
        model.pooler.max_tokens or DEFAULT_MAX_CONTEXT, DEFAULT_MAX_CONTEXT
    )
    context = min(wanted, spec.max_model_len)
    sizes = settings.step_sizes(CPU_STEP_SIZES)
    step_tokens = max(sizes.max_num_batched_tokens, context)
    max_rows = embedding_rows(sizes, step_tokens)
    cache = CacheShape.uniform(
        blocks=max_blocks(step_tokens, max_rows, settings.block_size),
        block_size=settings.block_size,
        layers=1,
        kv_heads=spec.num_heads if isinstance(spec, EncoderSpec) else spec.num_kv_heads,
        head_dim=spec.head_dim,
        item_bytes=2 if settings.kv_cache_dtype == "f16" else 4,
    )
    adapters, inner = 0, 0
    if isinstance(spec, DecoderSpec):
        adapters = lora_bytes(spec, settings, available)
        inner = lora_buffer_bytes(settings, step_tokens)
    plan = MemoryPlan(
        weight_bytes=weight_bytes,
        cache=cache,
        media=media_memory(spec.hidden_size, model.media_spec, model.media, settings),
        buffer_bytes=_buffer_bytes(spec, step_tokens, context) + inner,
        row_bytes=0,
        history_bytes=0,
        max_model_len=context,
        step_tokens=step_tokens,
        sizes=sizes,
        adapter_bytes=adapters,
    )
    refuse_excess(plan, available, "a smaller max_model_len or max_num_batched_tokens needs less")
    return plan


def _buffer_bytes(spec: EncoderSpec | DecoderSpec, step_tokens: int, max_model_len: int) -> int:
    """Return an upper bound of the bytes of a step's float32 activations and of the rope or
    position tables. At most the residual and the layer's input are in memory at the same time, with
    either q, k, v and the attention output, or the activations of the feed-forward."""
    if isinstance(spec, EncoderSpec):
        inner = max(5 * spec.hidden_size, (3 if spec.gated else 2) * spec.intermediate_size)
        rotated = 2 * spec.segments if spec.rope is None else 2 * spec.head_dim
    else:
        inner, rotated = max(spec.mixer_columns, spec.inner_columns), 2 * spec.rope.rotary_dim
    return 4 * (step_tokens * (3 * spec.hidden_size + inner) + max_model_len * rotated)
