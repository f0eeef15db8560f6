"""Starts the backend of a decoder on a CPU."""

from __future__ import annotations

from pathlib import Path

from penstock.config import EngineSettings, read_environment
from penstock.kernels.native import Pool
from penstock.models.decoder.decoder import Progress
from penstock.models.loader.model_loader import LoadedModel
from penstock.runtime.backend import DecoderBackend
from penstock.runtime.cpu.isa_selection import select_isas
from penstock.runtime.cpu.native import NativeBackend
from penstock.runtime.memory import MemoryPlan


def start_backend(
    model: LoadedModel,
    memory: MemoryPlan,
    settings: EngineSettings,
    progress: Progress | None,
    home: Path | None,
    pool: Pool | None = None,
    predecessor: NativeBackend | None = None,
) -> tuple[DecoderBackend, str]:
    """Return the backend that the settings choose, and the name of its arithmetic.

    `home`: as for `start_runtime`.
    `pool`, `predecessor`: see `NativeBackend`.
    """
    if settings.kernel_backend == "reference":
        # Importing torch takes two seconds; only the reference kernels need it.
        from penstock.runtime.cpu.reference import ReferenceBackend

        return ReferenceBackend(model, memory, settings, progress), "reference"
    isas = select_isas(model, memory.cache, settings, home or read_environment().home)
    backend = NativeBackend(model, memory, settings, progress, isas, pool, predecessor)
    return backend, isas.arithmetic
