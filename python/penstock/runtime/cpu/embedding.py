"""The runtime of a model that makes embeddings, or a logit of each pair: whole sequences in,
vectors out. No torch."""

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
from penstock.kernels.ops_interface import StepInputs
from penstock.models.decoder.decoder import Decoder, Progress
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.embedding.embedder import Embedder
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.loader.model_loader import LoadedEmbedder
from penstock.runtime.adapters import RuntimeAdapters, SlotAdapters, slot_adapters
from penstock.runtime.cpu.embedding_inputs import StandsFor, most_blocks, whole_sequences
from penstock.runtime.cpu.isa_selection import select_isas
from penstock.runtime.cpu.kv_cache import KvCache
from penstock.runtime.cpu.native import check_block_size, check_head_dim, finish_together
from penstock.runtime.memory import CacheShape, MemoryPlan, inner_bytes, lora_bytes, refuse_excess

Floats = npt.NDArray[np.float32]

MOST_CONTEXT = 8192
"""A sequence is computed in one step, whose memory grows with it; more is served where it is asked
for."""


class EmbeddingInfo(msgspec.Struct, frozen=True):
    """What a loaded model turned out to be. A step takes at most `max_rows` sequences and
    `step_tokens` tokens, a sequence at most `max_model_len`; `width` numbers an embedding;
    `memory_bytes`: the sum of the memory formula."""

    model_id: str
    fingerprint: str
    vocab_size: int
    max_model_len: int
    step_tokens: int
    max_rows: int
    width: int
    weight_bytes: int
    memory_bytes: int


class EmbeddingRuntime(Protocol):
    """One loaded model. Not thread-safe: one thread calls all of it."""

    @property
    def info(self) -> EmbeddingInfo: ...

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, one line."""

    @property
    def adapters(self) -> RuntimeAdapters | None:
        """None where the settings have no adapters, and of an encoder."""

    def embed(
        self,
        sequences: Sequence[Sequence[int]],
        slots: Sequence[int] = (),
        second_starts: Sequence[int] = (),
    ) -> Floats:
        """[R, W], valid until the next call. Token ids are within the vocabulary, sequences are
        not empty, and together they fit a step. `slots`: of the adapter of each, negative for none;
        empty where none has one. `second_starts`: where the second text of each begins, its length
        where there is none; empty where all are of one text."""

    def close(self) -> None:
        """Give memory and threads back; nothing else is called after it."""


class NativeEmbedding:
    """An `EmbeddingRuntime` on a CPU: the step is recorded once as a plan, and where there are
    adapters once more with them, in the same memory. Raises ModelError where the model does not fit
    `available` bytes (None: not checked) or the kernels refuse it. `home`: where the chosen levels
    are kept, None: PENSTOCK_HOME."""

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
        self._stands_for: StandsFor = "first" if model.pooler.pooling == "cls" else "last"
        levels = select_isas(model, memory.cache, settings, home or read_environment().home)
        self._ops = NativeOps.eager(Pool(settings.threads or available_cores()), levels)
        (self._cache,) = KvCache(memory.cache).caches
        max_rows = embedding_rows(memory.sizes, memory.step_tokens)
        self.adapters: SlotAdapters | None = None
        try:
            embedder: Embedder[Any] = Embedder(model, self._ops, memory.max_model_len, progress)
            self._embedder = embedder
            if isinstance(embedder.body, Decoder):
                self.adapters = slot_adapters(
                    embedder.body, self._ops, memory.adapter_bytes, settings
                )
            recorded = [self._record(memory, max_rows, None)]
            if self.adapters is not None:
                recorded.append(self._record(memory, max_rows, self.adapters.slots))
            self._plan, *adapted = finish_together(recorded)
            self._adapter_plan: Any = adapted[0] if adapted else None
        except ValueError as refusal:
            raise ModelError(f"{model.model_id}: the CPU kernels refuse: {refusal}") from None
        taken = replace(
            memory,
            weight_bytes=embedder.weight_bytes,
            buffer_bytes=int(self._plan.arena_bytes),
        )
        self.info = EmbeddingInfo(
            model_id=model.model_id,
            fingerprint=f"{model.fingerprint}-{levels.arithmetic}",
            vocab_size=model.spec.vocab,
            max_model_len=memory.max_model_len,
            step_tokens=memory.step_tokens,
            max_rows=max_rows,
            width=embedder.width,
            weight_bytes=embedder.weight_bytes,
            memory_bytes=taken.total_bytes,
        )
        self.report = taken.formula()

    def embed(
        self,
        sequences: Sequence[Sequence[int]],
        slots: Sequence[int] = (),
        second_starts: Sequence[int] = (),
    ) -> Floats:
        """See `EmbeddingRuntime`. A step without adapters has a plan of its own."""
        inputs = self._inputs(sequences, slots, second_starts)
        plan = self._plan if inputs.adapters is None else self._adapter_plan
        vectors: Floats = plan.run(*plan_arguments(inputs))
        return vectors

    def eager_embed(
        self,
        sequences: Sequence[Sequence[int]],
        slots: Sequence[int] = (),
        second_starts: Sequence[int] = (),
    ) -> Floats:
        """The same step by one kernel call after another: for telling what a plan does wrong."""
        inputs = self._inputs(sequences, slots, second_starts)
        held = None if self.adapters is None else self.adapters.slots
        vectors: Floats = self._embedder.forward(self._ops, inputs, self._cache, held)
        return vectors

    def close(self) -> None:
        """The plan holds weights and cache; they go with it."""
        del self._plan, self._adapter_plan, self._embedder, self._cache, self.adapters

    def _inputs(
        self,
        sequences: Sequence[Sequence[int]],
        slots: Sequence[int],
        second_starts: Sequence[int],
    ) -> StepInputs[npt.NDArray[np.int32]]:
        return whole_sequences(
            *(sequences, self._block_size, self._stands_for, slots),
            *(second_starts, self._second_offset),
        )

    def _record(
        self, memory: MemoryPlan, max_rows: int, slots: AdapterSlots | None
    ) -> tuple[PlanOps, Any]:
        blocks = -(-memory.max_model_len // self._block_size)
        recorder = self._ops.recorder(
            memory.step_tokens, max_rows, max_rows, blocks, adapters=slots is not None
        )
        vectors = self._embedder.forward(recorder, recorder.inputs, self._cache, slots)
        return recorder, vectors


def embedding_rows(sizes: StepSizes, step_tokens: int) -> int:
    """The most sequences of a step."""
    return min(sizes.max_num_seqs, step_tokens)


def plan_embedding(
    model: LoadedEmbedder, weight_bytes: int, settings: EngineSettings, available: int | None
) -> MemoryPlan:
    """Sizes for `model` within `available` bytes. The cache holds one step of one layer; adapters
    may take what `plan_memory` says. Raises ModelError with the numbers where it does not fit."""
    spec = model.spec
    wanted = settings.max_model_len or min(model.pooler.max_tokens or MOST_CONTEXT, MOST_CONTEXT)
    context = min(wanted, spec.max_model_len)
    sizes = settings.step_sizes(CPU_STEP_SIZES)
    step_tokens = max(sizes.max_num_batched_tokens, context)
    max_rows = embedding_rows(sizes, step_tokens)
    cache = CacheShape(
        blocks=most_blocks(step_tokens, max_rows, settings.block_size),
        block_size=settings.block_size,
        layers=1,
        kv_heads=spec.heads if isinstance(spec, EncoderSpec) else spec.kv_heads,
        head_dim=spec.head_dim,
        item_bytes=2 if settings.cache_dtype == "f16" else 4,
    )
    adapters, inner = 0, 0
    if isinstance(spec, DecoderSpec):
        adapters = lora_bytes(spec, settings, available)
        inner = inner_bytes(settings, step_tokens)
    plan = MemoryPlan(
        weight_bytes=weight_bytes,
        cache=cache,
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
    """An upper bound of what a step's activations take, float32: the residual and a layer's input,
    and either q, k, v and the attention's result, or the feed-forward's."""
    if isinstance(spec, EncoderSpec):
        inner = max(5 * spec.width, (3 if spec.gated else 2) * spec.ff)
        rotated = 2 * spec.segments if spec.rope is None else 2 * spec.head_dim
    else:
        attention = 3 * spec.q_rows + 2 * spec.kv_rows
        inner, rotated = max(attention, spec.inner_columns), 2 * spec.rope.rotary_dim
    return 4 * (step_tokens * (3 * spec.width + inner) + max_model_len * rotated)
