"""Models divided among two processes, on CPU tensors with gloo, and the same models on one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from gpu_runtime_on_cpu import start_gpu_runtime_on_cpu
from lora_base_models import LORA, settings
from msgspec.structs import replace

from penstock.config import EngineSettings
from penstock.models.hub.sources import files_at
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.ranks.load import start_tensor_parallel_runtime
from penstock.runtime.ranks.process_group import end_process
from penstock.runtime.ranks.runtime import TensorParallelRuntime

RANKS = 2


def tensor_parallel_settings(model: str = "m", **options: Any) -> EngineSettings:
    sizes = {"dtype": "f32", "kv_cache_memory_mb": 1, "cpu_kv_cache_memory_mb": 2, "lora": LORA}
    return settings(model, **(sizes | {"tensor_parallel_size": RANKS} | options))


def start_tensor_parallel(
    base: Path, on_rank_lost: Callable[[], None] = end_process, **options: Any
) -> TensorParallelRuntime:
    wanted = tensor_parallel_settings(**options)
    devices = ("cpu",) * wanted.tensor_parallel_size
    return start_tensor_parallel_runtime(
        files_at(base, base.name), wanted, devices, on_rank_lost=on_rank_lost
    )


def start_single(base: Path, **options: Any) -> GpuRuntime:
    return start_gpu_runtime_on_cpu(
        base, replace(tensor_parallel_settings(**options), tensor_parallel_size=1)
    )


def rank_processes(parent: int | None = None) -> list[psutil.Process]:
    """Return the rank processes that a process leads, by default this one."""
    children = psutil.Process(parent or os.getpid()).children()
    return [child for child in children if "penstock.runtime.ranks.process" in child.cmdline()]
