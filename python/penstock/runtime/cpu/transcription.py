"""Whisper on a CPU: the native kernels, and a plan of the decoder's step. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.base.errors import ModelError
from penstock.base.resources import available_cores
from penstock.config import EngineSettings
from penstock.kernels.native import NativeOps, Pool, plan_arguments
from penstock.kernels.step_inputs import StepInputs
from penstock.models.decoder.rope import identity_table
from penstock.models.whisper.decoder import CrossAttention, WhisperDecoder
from penstock.models.whisper.loader import LoadedWhisper
from penstock.models.whisper.tower import WhisperTower, WhisperTowerSpec
from penstock.runtime.backend import Floats, Ints
from penstock.runtime.cpu.kv_cache import KvCache
from penstock.runtime.cpu.native import check_block_size, check_head_dim
from penstock.runtime.cpu.native_sampling import NativeSampling
from penstock.runtime.media import TowerMedia
from penstock.runtime.transcription import (
    TranscriptionRuntime,
    TranscriptionSizes,
    plan_transcription,
)


def start_native_transcription(
    model: LoadedWhisper,
    settings: EngineSettings,
    available: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TranscriptionRuntime:
    """Return the runtime of a Whisper model on the CPU. `available`: bytes of memory that the model
    must fit, None for no check. `progress(parts packed, all parts)`: called while the weights are
    packed. Raises ModelError if the model does not fit or the kernels do not support its sizes."""
    check_block_size(settings.block_size)
    check_head_dim(model.model_id, model.spec.head_dim)
    planned = plan_transcription(model, settings, available)
    backend = NativeTranscription(model, settings, planned)
    if progress is not None:
        progress(1, 1)
    return TranscriptionRuntime(model, settings, planned, backend)


class NativeTranscription(NativeSampling):
    """A `TranscriptionBackend` with native kernels. Raises ModelError if the kernels do not support
    the model's sizes."""

    def __init__(
        self, model: LoadedWhisper, settings: EngineSettings, planned: TranscriptionSizes
    ) -> None:
        spec = model.spec
        isa = None if settings.cpu_isa == "auto" else settings.cpu_isa
        self._ops = NativeOps.eager(Pool(settings.threads or available_cores()), isa)
        self._cache = KvCache(planned.memory.cache)
        self._windows = KvCache(planned.windows)
        self._spec = spec
        try:
            tower: WhisperTower[Any] = WhisperTower(spec, model.weights.tensors, self._ops)
            self._decoder: WhisperDecoder[Any] = WhisperDecoder(spec, model.weights, self._ops)
            self._plan = self._record(planned)
        except ValueError as refusal:
            raise ModelError(
                f"{model.model_id}: not supported by the CPU kernels: {refusal}"
            ) from None
        kinds = WhisperTowerSpec(spec).kinds
        width = spec.encoder.positions * spec.width
        self.media: TowerMedia[Any] = TowerMedia([(kinds, tower)], self._ops, width, np.asarray)

    @property
    def arithmetic(self) -> str:
        return self._ops.isa

    def write_window(self, digest: bytes, table: Ints) -> int:
        """Write a window to the cache; see `TranscriptionBackend.write_window`."""
        spec = self._spec
        window = self.media.encoded[digest].rows.reshape(-1, spec.width)
        heads = (spec.heads, spec.heads, spec.head_dim)
        rope, inputs = self._ops.constant(identity_table(1)), self._rows_in(table, len(window))
        qkv = np.zeros((len(window), 3 * spec.width), np.float32)  # no queries
        for layer, cache in enumerate(self._windows.present):
            qkv[:, spec.width :] = self._decoder.keys_values(self._ops, window, layer)
            self._ops.rope_cache(qkv, rope, inputs, cache, heads, None)
        return len(window)

    def _rows_in(self, table: Ints, count: int) -> StepInputs[Ints]:
        """Return inputs that place `count` rows in the blocks `table` of the cache of windows."""
        size = self._windows.present[0].keys.shape[-1]
        slots = np.asarray(table, np.int32)[:, None] * size + np.arange(size, dtype=np.int32)
        zeros = np.zeros(count, np.int32)
        return StepInputs(
            tokens=zeros,
            positions=zeros,  # of the identity table, which has one row
            slots=slots.reshape(-1)[:count],
            query_starts=np.array([0, count], np.int32),
            context_lens=np.array([count], np.int32),
            block_tables=np.asarray(table, np.int32)[None],
            sample_rows=np.zeros(0, np.int32),
        )

    def logits(self, inputs: StepInputs[Ints], cross: StepInputs[Ints]) -> Floats:
        """Replay the plan; see `TranscriptionBackend.logits`. Returns a view of its memory."""
        logits: Floats = self._plan.run(*plan_arguments(inputs, cross))
        return logits

    def eager_logits(self, inputs: StepInputs[Ints], cross: StepInputs[Ints]) -> Floats:
        """Compute the result of `logits` kernel by kernel instead of replaying the plan, to debug
        the plan."""
        crossed = CrossAttention(cross, self._windows.present)
        logits: Floats = self._decoder.forward(self._ops, inputs, self._cache.present, crossed)
        return logits

    def prepare(self, used_blocks: int) -> bool:
        """Allocate memory of the KV cache ahead of its use; see `Backend.prepare`."""
        return self._cache.prepare(used_blocks)

    def close(self) -> None:
        """Release the plan, which holds the weights and the caches."""
        del self._plan, self._decoder, self.media, self._cache, self._windows

    def _record(self, planned: TranscriptionSizes) -> Any:
        """Record the step of the decoder as a plan."""
        spec, memory = self._spec, planned.memory
        own_blocks = -(-spec.max_tokens // memory.cache.block_size)
        max_blocks = max(own_blocks, planned.blocks_per_window)
        sizes = (memory.step_tokens, planned.rows, planned.samples, max_blocks)
        recorder = self._ops.recorder(*sizes, cross=True)
        assert recorder.cross_inputs is not None
        cross = CrossAttention(recorder.cross_inputs, self._windows.present)
        logits = self._decoder.forward(recorder, recorder.inputs, self._cache.present, cross)
        return recorder.finish(logits)
