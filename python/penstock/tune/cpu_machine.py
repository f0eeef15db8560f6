"""The CPU as a device to tune for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from penstock.base.resources import available_bytes
from penstock.config import CPU_STEP_SIZES, EngineSettings
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.cpu.native import NativeBackend
from penstock.runtime.cpu.start_backend import start_backend
from penstock.runtime.load import cpu_runtime
from penstock.runtime.media_memory import media_memory
from penstock.runtime.memory import cache_type_bytes, plan_memory
from penstock.runtime.protocol import Runtime
from penstock.runtime.weight_bytes import packed_bytes
from penstock.runtime.weight_quantization import refuse_on_cpu, weight_form
from penstock.system.facts import MEMINFO, total_memory
from penstock.tune.machine import Values
from penstock.tune.types import MemoryEstimate

_FILLED: Final = 0.01
"""The keys and values of a measurement. Pages that were never written would all be one page."""


class CpuMachine:
    """A `Machine` that is the CPU.

    - `home`: the folder of the saved ISA selections.
    - `held_bytes`: the memory of an engine that the tuned one would replace.
    """

    backend: Final[Literal["cpu", "cuda"]] = "cpu"
    device: Final = "cpu"
    cache_dtypes: Final = ("auto", "int8")
    default_rows: Final = CPU_STEP_SIZES.max_num_seqs

    def __init__(self, home: Path, held_bytes: int = 0) -> None:
        self._home = home
        available = available_bytes()
        self.total_bytes = total_memory(MEMINFO)
        self.free_bytes = self.total_bytes if available is None else available
        self.available_bytes = self.free_bytes + held_bytes

    def check(self, settings: EngineSettings) -> None:
        """See `Machine`."""
        refuse_on_cpu(settings)
        weight_form(settings)

    def open(self, files: ModelFiles, settings: EngineSettings, values: Values) -> LoadedModel:
        """See `Machine`."""
        return load_model(files, settings.dtype, form=weight_form(settings), values=values)

    def cache_token_bytes(self, model: LoadedModel, settings: EngineSettings) -> int:
        """See `Machine`."""
        item, scale = cache_type_bytes(settings)
        return CacheShape(1, 1, model.spec.caches, item, scale_bytes=scale).size_bytes

    def weight_bytes(self, model: LoadedModel, files: ModelFiles, settings: EngineSettings) -> int:
        """See `Machine`."""
        return packed_bytes(files, model, settings)

    def memory(
        self, model: LoadedModel, weight_bytes: int, settings: EngineSettings
    ) -> MemoryEstimate:
        """See `Machine`."""
        media = media_memory(model.spec.hidden_size, model.media_spec, model.media, settings)
        plan = plan_memory(model.spec, weight_bytes, settings, None, media)
        cache = plan.cache.size_bytes + plan.states.size_bytes
        other = plan.total_bytes - cache - weight_bytes
        return MemoryEstimate(weight_bytes, cache, other, plan.total_bytes)

    def start(self, model: LoadedModel, settings: EngineSettings) -> Runtime:
        """See `Machine`."""
        memory = plan_memory(model.spec, 0, settings, None)
        started = start_backend(model, memory, settings, None, self._home)
        backend: Any = started[0]
        if isinstance(backend, NativeBackend):
            for cache in backend.caches:
                if cache is not None:
                    cache.keys[...] = np.float16(_FILLED)
                    cache.values[...] = np.float16(_FILLED)
        return cpu_runtime(model, memory, settings, started)
