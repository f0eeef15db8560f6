"""The CPU runtime of Whisper: transcribes windows of speech. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.base.resources import available_cores
from penstock.config import CPU_STEP_SIZES, EngineSettings, StepSizes
from penstock.kernels.native import NativeOps, Pool
from penstock.models.whisper.decoder import CrossAttention, WhisperDecoder
from penstock.models.whisper.loader import LoadedWhisper
from penstock.models.whisper.rules import TranscriptRules
from penstock.models.whisper.spec import WhisperSpec
from penstock.models.whisper.tower import WhisperTower, WhisperTowerSpec
from penstock.runtime.adapters import RuntimeAdapters
from penstock.runtime.cpu.kv_cache import KvCache
from penstock.runtime.cpu.native import check_block_size, check_head_dim
from penstock.runtime.cpu.window_cache import WindowCache
from penstock.runtime.media import RuntimeMedia, TowerMedia
from penstock.runtime.media_memory import MediaMemory
from penstock.runtime.memory import (
    HISTORY_BYTES,
    MIB,
    CacheShape,
    MemoryPlan,
    cache_item_bytes,
    refuse_excess,
)
from penstock.runtime.protocol import Masks, RuntimeInfo
from penstock.runtime.row_table import RowTable
from penstock.runtime.sampler import Sampler
from penstock.scheduler.types import Chunk, StepPlan, StepResult

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

MAX_WINDOW_BYTES: Final = 1 << 30
"""The most memory of the keys and values of windows, unless `max_num_seqs` asks for more rows."""


class TranscriptionRuntime:
    """A `Runtime` of Whisper on a CPU. Steps run kernel by kernel.

    `available`: bytes of memory that the model must fit, None for no check.
    `progress(parts packed, all parts)`: called while the weights are packed.
    `width`: W, numbers per position of an encoded window.

    Raises ModelError if the model does not fit or the kernels do not support its sizes.
    """

    def __init__(
        self,
        model: LoadedWhisper,
        settings: EngineSettings,
        available: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        spec = model.spec
        check_block_size(settings.block_size)
        check_head_dim(model.model_id, spec.head_dim)
        memory, windows = plan_transcription(model, settings, available)
        isa = None if settings.cpu_isa == "auto" else settings.cpu_isa
        self._ops = NativeOps.eager(Pool(settings.threads or available_cores()), isa)
        self._cache = KvCache(memory.cache)
        self._windows = WindowCache(KvCache(windows), memory.sizes.max_num_seqs, spec)
        try:
            tower: WhisperTower[Any] = WhisperTower(spec, model.weights.tensors, self._ops)
            self._decoder: WhisperDecoder[Any] = WhisperDecoder(spec, model.weights, self._ops)
        except ValueError as refusal:
            raise ModelError(
                f"{model.model_id}: not supported by the CPU kernels: {refusal}"
            ) from None
        if progress is not None:
            progress(1, 1)
        kinds = WhisperTowerSpec(spec).kinds
        width = spec.encoder.positions * spec.width
        self._media = TowerMedia([(kinds, tower)], self._ops, width, np.asarray)
        self.width = spec.width
        self._rules = TranscriptRules(spec.tokens)
        sizes = memory.sizes
        self._rows = RowTable(sizes.max_num_seqs, spec.max_tokens, settings.block_size)
        self._starts: dict[int, int | None] = {}  # row -> start of its transcript
        self._sampler = Sampler(self._rows, self._ops)
        self._done: StepResult | None = None
        self._used_blocks = 0
        self._report = memory.formula()
        self._info = RuntimeInfo(
            model_id=model.model_id,
            fingerprint=f"{model.fingerprint}-{self._ops.isa}",
            vocab_size=spec.vocab_size,
            max_model_len=spec.max_tokens,
            cache_blocks=memory.cache.blocks,
            block_size=settings.block_size,
            weight_bytes=model.weights.size_bytes,
            memory_bytes=memory.total_bytes,
            sizes=sizes,
        )

    @property
    def info(self) -> RuntimeInfo:
        return self._info

    @property
    def report(self) -> str:
        return self._report

    @property
    def adapters(self) -> RuntimeAdapters | None:
        return None

    @property
    def media(self) -> RuntimeMedia | None:
        return self._media

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
        rows = [chunk.row for chunk in plan.chunks]
        cross = CrossAttention(self._windows.inputs(rows, inputs), self._windows.caches)
        logits: Floats = self._decoder.forward(self._ops, inputs, self._cache.caches, cross)
        self._restrict(plan.chunks, logits)
        return self._sampler.finish(plan, logits, masks)

    def prepare(self) -> bool:
        """Allocate memory of the KV cache ahead of its use; see `Runtime.prepare`."""
        return self._cache.prepare(self._used_blocks)

    def close(self) -> None:
        """Release the weights and the caches."""
        del self._decoder, self._media, self._cache, self._windows

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
            self._windows.admit(admit.row, window.digest, self._project)

    def _project(self, digest: bytes, layer: int) -> Floats:
        """Return the keys and values of a window for one layer, [positions, 2 W]."""
        rows = self._media.encoded[digest].rows.reshape(-1, self.width)
        projected: Floats = self._decoder.keys_values(self._ops, rows, layer)
        return projected

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
) -> tuple[MemoryPlan, CacheShape]:
    """Return the memory plan of a model within `available` bytes (None: not checked), and the shape
    of the cache of windows, which counts as media buffers. Raises ModelError with the numbers
    if the model does not fit."""
    spec = model.spec
    if settings.speculative_algorithm != "none":
        raise ModelError("speculative_algorithm must be none for Whisper, which does not speculate")
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
    buffers = 4 * (step * per_token + min(step, spec.max_tokens) * spec.vocab_size)
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
    return plan, windows


def _cache_shape(spec: WhisperSpec, settings: EngineSettings, tokens: int, rows: int) -> CacheShape:
    return CacheShape(
        blocks=rows * -(-tokens // settings.block_size),
        block_size=settings.block_size,
        layers=spec.layers,
        kv_heads=spec.heads,
        head_dim=spec.head_dim,
        item_bytes=cache_item_bytes(settings),
    )
