"""Whisper over torch ops: on a GPU, or with the reference ops on the CPU.

Steps are launched kernel by kernel. The rules of transcripts change logits on the CPU, which get
copied there and back to be sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.kernels.cases.random_inputs import map_leaves
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.models.whisper.decoder import CrossAttention, WhisperDecoder
from penstock.models.whisper.loader import LoadedWhisper
from penstock.models.whisper.tower import WhisperTower, WhisperTowerSpec
from penstock.runtime.backend import Floats, Ints
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.gpu.kv_pools import KvPools
from penstock.runtime.gpu.load import cache_dtype, open_device
from penstock.runtime.gpu.media import all_finite, kept_rows, launching
from penstock.runtime.gpu.memory import FIXED_BYTES, SHARE
from penstock.runtime.gpu.sampler import CpuSampler
from penstock.runtime.media import TowerMedia
from penstock.runtime.memory import refuse_8_bit_cache
from penstock.runtime.transcription import (
    TranscriptionRuntime,
    TranscriptionSizes,
    plan_transcription,
)

Progress = Callable[[int, int], None]


def start_gpu_transcription(
    model: LoadedWhisper, settings: EngineSettings, device: str, progress: Progress | None = None
) -> TranscriptionRuntime:
    """Return the runtime of a Whisper model on `device`. Raises ModelError if the device cannot be
    used, the model does not fit, or a setting is not supported."""
    refuse_on_gpu(settings)
    opened = open_device(settings, device)
    available = int(SHARE * opened.free_bytes()) - FIXED_BYTES
    return start_torch_transcription(model, settings, opened.ops, available, progress)


def start_torch_transcription(
    model: LoadedWhisper,
    settings: EngineSettings,
    ops: TorchOps,
    available: int | None = None,
    progress: Progress | None = None,
) -> TranscriptionRuntime:
    """Return the runtime of a Whisper model over `ops`, on their device. `available`, `progress`:
    see `start_native_transcription`. Raises ModelError if the model does not fit."""
    planned = plan_transcription(model, settings, available)
    backend = TorchTranscription(model, settings, planned, ops)
    if progress is not None:
        progress(1, 1)
    return TranscriptionRuntime(model, settings, planned, backend)


def refuse_on_gpu(settings: EngineSettings) -> None:
    """Raise ModelError for a setting that Whisper does not support on a GPU."""
    supported: dict[str, tuple[Any, Any]] = {
        "tensor_parallel_size": (settings.tensor_parallel_size, 1),
        "cpu_kv_cache_memory_mb": (settings.cpu_kv_cache_memory_mb, 0),
        "deterministic": (settings.deterministic, False),
    }
    for name, (given, wanted) in supported.items():
        if given != wanted:
            raise ModelError(f"{name} is {given}; for Whisper it must be {wanted}")
    if settings.quantization == "fp8":
        raise ModelError("quantization is fp8; for Whisper it must be int8 or int4")
    refuse_8_bit_cache(settings, "Whisper")


class TorchTranscription:
    """A `TranscriptionBackend` over torch ops."""

    def __init__(
        self,
        model: LoadedWhisper,
        settings: EngineSettings,
        planned: TranscriptionSizes,
        ops: TorchOps,
    ) -> None:
        spec = model.spec
        self._spec = spec
        self._ops = ops
        self._device = torch.device(ops.device)
        self._stream = torch.cuda.Stream(ops.device) if self._device.type == "cuda" else None
        self._sampler = CpuSampler(ops)
        dtype = cache_dtype(settings, ops.dtype)
        self._caches = _allocate(planned.memory.cache, dtype, ops.device)
        self._windows = _allocate(planned.windows, dtype, ops.device)
        tower: WhisperTower[torch.Tensor] = WhisperTower(spec, model.weights.tensors, ops)
        self._decoder: WhisperDecoder[torch.Tensor] = WhisperDecoder(spec, model.weights, ops)
        self.media: TowerMedia[torch.Tensor] = TowerMedia(
            [(WhisperTowerSpec(spec).kinds, tower)],
            ops,
            spec.encoder.positions * spec.width,
            partial(kept_rows, ops),
            self._launching,
            all_finite,
        )
        if self._stream is not None:
            torch.cuda.synchronize(self._device)  # weights are complete for the stream of steps

    @property
    def arithmetic(self) -> str:
        return self._ops.registry["linear"].name

    def write_window(self, digest: bytes, table: Ints) -> int:
        """Write a window to the cache; see `TranscriptionBackend.write_window`."""
        spec = self._spec
        with self._launching():
            encoded: Any = self.media.encoded[digest].rows
            window = encoded.reshape(-1, spec.width)
            blocks = torch.from_numpy(table).to(self._device).long()
            for layer, cache in enumerate(self._windows):
                projected = self._decoder.keys_values(self._ops, window, layer)
                size = cache.values.shape[2]
                padded = projected.new_zeros(len(table) * size, 2 * spec.width)
                padded[: len(window)] = projected
                parts = padded.reshape(len(table), size, 2, spec.heads, spec.head_dim)
                keys, values = parts.to(cache.keys.dtype).unbind(2)
                cache.keys[blocks] = keys.permute(0, 2, 3, 1)
                cache.values[blocks] = values.permute(0, 2, 1, 3)
        return len(window)

    def logits(self, inputs: StepInputs[Ints], cross: StepInputs[Ints]) -> Floats:
        """Launch a step and wait for it; see `TranscriptionBackend.logits`."""
        with self._launching():
            crossed = CrossAttention(self._sent(cross), self._windows)
            logits = self._decoder.forward(self._ops, self._sent(inputs), self._caches, crossed)
            found: Floats = logits.float().cpu().numpy()
        return found

    def sample(self, logits: Floats, rows: SamplingRows) -> Ints:
        with self._launching():
            return self._sampler.sample(self._tensor(logits), rows)

    def top_logprobs(
        self, logits: Floats, rows: Ints, tokens: Ints, count: int
    ) -> tuple[Floats, Ints, Floats]:
        with self._launching():
            return self._sampler.top_logprobs(self._tensor(logits), rows, tokens, count)

    def prepare(self, used_blocks: int) -> bool:
        """Return False, because there is nothing to prepare. See `Backend.prepare`."""
        return False

    def close(self) -> None:
        """Wait for the device and release the weights and the caches."""
        if self._stream is not None:
            torch.cuda.synchronize(self._device)
        del self._decoder, self.media
        self._caches = self._windows = []

    def _launching(self) -> AbstractContextManager[None]:
        return launching(self._device, self._stream)

    def _sent(self, inputs: StepInputs[Ints]) -> StepInputs[torch.Tensor]:
        sent: StepInputs[torch.Tensor] = map_leaves(inputs, np.ndarray, self._tensor)
        return sent

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _allocate(shape: CacheShape, dtype: torch.dtype, device: str) -> list[LayerCache[torch.Tensor]]:
    return KvPools(shape, dtype, device).present
