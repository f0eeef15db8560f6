"""The runtime of Whisper: transcribes windows of speech. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np

from penstock.base.errors import ModelError
from penstock.config import CPU_STEP_SIZES, EngineSettings, StepSizes
from penstock.kernels.step_inputs import StepInputs
from penstock.models.whisper.loader import LoadedWhisper
from penstock.models.whisper.rules import TranscriptRules
from penstock.models.whisper.spec import WhisperSpec
from penstock.runtime.adapters import RuntimeAdapters
from penstock.runtime.backend import Floats, Ints, SamplingOps
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.mebibytes import MIB
from penstock.runtime.media import RuntimeMedia, TowerMedia
from penstock.runtime.media_memory import MediaMemory
from penstock.runtime.memory import (
    HISTORY_BYTES,
    MemoryPlan,
    cache_type_bytes,
    refuse_8_bit_cache,
    refuse_excess,
)
from penstock.runtime.protocol import Masks, RuntimeInfo
from penstock.runtime.row_table import RowTable
from penstock.runtime.sampler import Sampler
from penstock.runtime.window_places import WindowPlaces
from penstock.scheduler import MAX_DRAFT_TOKENS
from penstock.scheduler.types import Chunk, StepPlan, StepResult

MAX_WINDOW_BYTES: Final = 1 << 30
"""The most memory of the keys and values of windows, unless `max_num_seqs` asks for more rows."""


@dataclass(frozen=True, slots=True)
class TranscriptionSizes:
    """The memory of a transcription runtime.

    - `memory`: the plan of all memory. The cache of windows counts as media buffers.
    - `windows`: the shape of the cache of windows.
    """

    memory: MemoryPlan
    windows: CacheShape

    @property
    def rows(self) -> int:
        return self.memory.sizes.max_num_seqs

    @property
    def samples(self) -> int:
        """The most tokens of a step whose logits are computed."""
        return _max_samples(self.memory.sizes)

    @property
    def blocks_per_window(self) -> int:
        return self.windows.blocks // self.rows


class TranscriptionBackend(SamplingOps, Protocol):
    """Runs the forward pass of Whisper on a device.

    - `arithmetic`: names the arithmetic, for the fingerprint.
    """

    @property
    def arithmetic(self) -> str: ...

    @property
    def media(self) -> TowerMedia[Any]: ...

    def write_window(self, digest: bytes, table: Ints) -> int:
        """Project an encoded window and write its keys and values to the blocks `table` of the
        cache of windows. Return its number of positions."""

    def logits(self, inputs: StepInputs[Ints], cross: StepInputs[Ints]) -> Floats:
        """Run a step and return the logits [S, V] of the sampled tokens, which the caller may
        modify until the next call. `cross`: the inputs of cross-attention, whose context lengths
        and block tables name windows."""

    def prepare(self, used_blocks: int) -> bool:
        """See `Backend.prepare`."""

    def close(self) -> None: ...


class TranscriptionRuntime:
    """A `Runtime` of Whisper over a backend.

    `width`: W, numbers per position of an encoded window.
    """

    def __init__(
        self,
        model: LoadedWhisper,
        settings: EngineSettings,
        planned: TranscriptionSizes,
        backend: TranscriptionBackend,
    ) -> None:
        spec, memory = model.spec, planned.memory
        self.width = spec.width
        self._backend = backend
        self._windows = WindowPlaces(planned.rows, planned.blocks_per_window, backend.write_window)
        self._rules = TranscriptRules(spec.tokens)
        self._rows = RowTable(planned.rows, spec.max_tokens, settings.block_size)
        self._starts: dict[int, int | None] = {}  # row -> start of its transcript
        self._sampler = Sampler(self._rows, backend)
        self._done: StepResult | None = None
        self._used_blocks = 0
        self._report = memory.formula()
        self._info = RuntimeInfo(
            model_id=model.model_id,
            fingerprint=f"{model.fingerprint}-{backend.arithmetic}",
            vocab_size=spec.vocab_size,
            max_model_len=spec.max_tokens,
            cache_blocks=memory.cache.blocks,
            block_size=settings.block_size,
            weight_bytes=model.weights.size_bytes,
            memory_bytes=memory.total_bytes,
            sizes=memory.sizes,
        )

    @property
    def info(self) -> RuntimeInfo:
        return self._info

    @property
    def report(self) -> str:
        return self._report

    @property
    def live_weights(self) -> None:
        return None

    @property
    def adapters(self) -> RuntimeAdapters | None:
        return None

    @property
    def media(self) -> RuntimeMedia | None:
        return self._backend.media

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        """Execute a plan before returning; see `Runtime.submit`."""
        self._done = self.execute(plan, masks)

    def collect(self) -> StepResult:
        """Return the result of the submitted step; see `Runtime.collect`."""
        done, self._done = self._done, None
        assert done is not None, "collect() without submit()"
        return done

    def execute(self, plan: StepPlan, masks: Masks | None = None) -> StepResult:
        """Submit a step and collect its result in one call."""
        self._apply(plan)
        inputs = self._rows.inputs(plan.chunks)
        cross = self._windows.inputs([chunk.row for chunk in plan.chunks], inputs)
        logits = self._backend.logits(inputs, cross)
        self._restrict(plan.chunks, logits)
        return self._sampler.finish(plan, logits, masks)

    def prepare(self) -> bool:
        """Allocate memory of the KV cache ahead of its use; see `Runtime.prepare`."""
        return self._backend.prepare(self._used_blocks)

    def close(self) -> None:
        """Release the weights and the caches."""
        self._backend.close()

    def _apply(self, plan: StepPlan) -> None:
        """Apply the changes of a plan, and project the windows of new rows."""
        self._rows.apply(plan)
        for row in plan.releases:
            self._windows.release(row)
        for append in plan.blocks:
            self._used_blocks = max(self._used_blocks, max(append.blocks, default=0) + 1)
        for admit in plan.admissions:
            prompt = np.array(admit.token_ids[: admit.prompt_tokens], np.int32)
            self._starts[admit.row] = self._rules.transcript_start(prompt)
            (window,) = admit.media
            self._windows.admit(admit.row, window.digest)

    def _restrict(self, chunks: tuple[Chunk, ...], logits: Floats) -> None:
        """Apply the rules of transcripts to the logits of the sampled rows, which come first."""
        sampled = [chunk for chunk in chunks if chunk.samples]
        for chunk, row_logits in zip(sampled, logits, strict=False):
            start = self._starts[chunk.row]
            if start is not None:
                known = self._rows.tokens_after(chunk.row, -1, chunk.start + chunk.length)
                self._rules.apply(row_logits, known, start)


def plan_transcription(
    model: LoadedWhisper, settings: EngineSettings, available: int | None
) -> TranscriptionSizes:
    """Return the memory of a model within `available` bytes (None: not checked). Raises ModelError
    with the numbers if the model does not fit."""
    spec = model.spec
    if settings.speculative_algorithm != "none":
        raise ModelError("speculative_algorithm must be none for Whisper, which does not speculate")
    if settings.draft_model is not None:
        raise ModelError("draft_model must not be set for Whisper, which does not speculate")
    window = _cache_shape(spec, settings, spec.encoder.positions, 1)
    asked = settings.step_sizes(CPU_STEP_SIZES)
    rows = asked.max_num_seqs
    if settings.max_num_seqs is None:
        rows = max(1, min(rows, MAX_WINDOW_BYTES // window.size_bytes))
    sizes = StepSizes(rows, max(asked.max_num_batched_tokens, spec.max_tokens))
    windows = replace(window, blocks=rows * window.blocks)
    cache = _cache_shape(spec, settings, spec.max_tokens, rows)
    step = sizes.max_num_batched_tokens
    per_token = 8 * spec.width + 2 * max(spec.intermediate, spec.width)
    buffers = 4 * (step * per_token + _max_samples(sizes) * spec.vocab_size)
    plan = MemoryPlan(
        weight_bytes=model.weights.size_bytes - model.weights.encoder_bytes,
        cache=cache,
        buffer_bytes=buffers,
        row_bytes=4 * rows * (spec.max_tokens + cache.blocks),
        history_bytes=HISTORY_BYTES * rows * spec.max_tokens,
        max_model_len=spec.max_tokens,
        step_tokens=step,
        sizes=sizes,
        media=MediaMemory(
            tower_bytes=model.weights.encoder_bytes,
            scratch_bytes=spec.encoder.scratch_bytes(),
            cache_bytes=settings.encoder_cache_mb * MIB,
            row_bytes=windows.size_bytes,
        ),
    )
    refuse_excess(plan, available, f"a smaller max_num_seqs needs {window.size_bytes // MIB} MiB"
                  " less for each row")  # fmt: skip
    return TranscriptionSizes(plan, windows)


def _max_samples(sizes: StepSizes) -> int:
    return min(sizes.max_num_seqs + MAX_DRAFT_TOKENS, sizes.max_num_batched_tokens)


def _cache_shape(spec: WhisperSpec, settings: EngineSettings, tokens: int, rows: int) -> CacheShape:
    refuse_8_bit_cache(settings, "Whisper")
    return CacheShape.uniform(
        blocks=rows * -(-tokens // settings.block_size),
        block_size=settings.block_size,
        layers=spec.layers,
        kv_heads=spec.heads,
        head_dim=spec.head_dim,
        item_bytes=cache_type_bytes(settings)[0],
    )
