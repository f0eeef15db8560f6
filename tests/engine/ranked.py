"""Models divided among two processes, rehearsed on CPU tensors with gloo, and the same on one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from adapter_bases import LORA, settings
from device_runtimes import rehearse
from msgspec.structs import replace

from penstock.config import EngineSettings
from penstock.models.sources import files_at
from penstock.runtime.gpu import GpuRuntime
from penstock.runtime.rank_load import start_ranked_runtime
from penstock.runtime.rank_processes import end_process
from penstock.runtime.ranks import LeadingRuntime

RANKS = 2


def ranked_settings(model: str = "m", **options: Any) -> EngineSettings:
    sizes = {"dtype": "f32", "cache_mb": 1, "host_cache_mb": 2, "lora": LORA}
    return settings(model, **(sizes | {"tensor_parallel": RANKS} | options))


def start_ranked(
    base: Path, lost: Callable[[], None] = end_process, **options: Any
) -> LeadingRuntime:
    wanted = ranked_settings(**options)
    devices = ("cpu",) * wanted.tensor_parallel
    return start_ranked_runtime(files_at(base, base.name), wanted, devices, lost=lost)


def start_alone(base: Path, **options: Any) -> GpuRuntime:
    return rehearse(base, replace(ranked_settings(**options), tensor_parallel=1))


def rank_processes(parent: int | None = None) -> list[psutil.Process]:
    """The processes of the ranks that a process leads, by default this one."""
    children = psutil.Process(parent or os.getpid()).children()
    return [child for child in children if "penstock.runtime.rank_process" in child.cmdline()]
