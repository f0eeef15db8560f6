"""The section `profile`: device time of decode steps by kernel, and the idle time between them."""

from __future__ import annotations

import time
from typing import Any

from torch.profiler import ProfilerActivity, profile

from bench.device.engine import (
    FULL,
    SMALL,
    Sizes,
    engine_settings,
    open_runtime,
    start_decoding,
    step_until_prefilled,
    submit_requests,
)
from bench.device.machine import Bench
from bench.device.model_shapes import SHAPES
from bench.device.result_log import Record
from penstock.engine.core import EngineCore
from penstock.runtime.gpu.runtime import GpuRuntime

STEPS, LINES = 12, 14


def measure(bench: Bench, record: Record, name: str) -> None:
    """Run the section: decode steps at three widths, and prefill."""
    shape, sizes = SHAPES[name], FULL
    if bench.rehearsed:
        shape, sizes = shape.small(), SMALL
    with open_runtime(bench, record, shape, sizes) as runtime:
        for width in (sizes.widths[0], sizes.widths[len(sizes.widths) // 2], sizes.widths[-1]):
            record.title(f"{name}, {width} rows: kernels of {STEPS} decode steps")
            runtime.warm(width)
            _profile(bench, record, runtime, sizes, width)
        record.title(f"{name}, kernels of the prefill of {2 * sizes.budget} tokens")
        _profile_prefill(bench, record, runtime, sizes)


def _profile(bench: Bench, record: Record, runtime: GpuRuntime, sizes: Sizes, width: int) -> None:
    steps = min(STEPS, sizes.new - 2)
    core, _ = start_decoding(runtime, sizes, width, steps + 4)
    for _ in range(2):
        core.step()
    activities = [ProfilerActivity.CPU]
    if bench.device != "cpu":
        activities = [ProfilerActivity.CUDA]
    bench.sync()
    with profile(activities=activities) as traced:
        began = time.perf_counter()
        for _ in range(steps):
            core.step()
        wall_s = time.perf_counter() - began
        bench.sync()
    while core.has_work:
        core.step()
    _report(record, traced, wall_s, cuda=bench.device != "cpu")


def _profile_prefill(bench: Bench, record: Record, runtime: GpuRuntime, sizes: Sizes) -> None:
    """Profile two prefill steps, each as large as a step may be."""
    width = max(2 * sizes.budget // sizes.prompt, 1)
    core = EngineCore.for_runtime(runtime, engine_settings(sizes))
    waiting = submit_requests(core, sizes, min(width, sizes.widths[-1]), 1, "prefill-")
    activity = ProfilerActivity.CPU if bench.device == "cpu" else ProfilerActivity.CUDA
    bench.sync()
    with profile(activities=[activity]) as traced:
        began = time.perf_counter()
        step_until_prefilled(core, waiting)
        bench.sync()
        wall_s = time.perf_counter() - began
    while core.has_work:
        core.step()
    _report(record, traced, wall_s, cuda=bench.device != "cpu")


def _report(record: Record, traced: Any, wall_s: float, *, cuda: bool) -> None:
    times: dict[str, tuple[float, int]] = {}
    for event in traced.key_averages():
        taken = event.self_device_time_total if cuda else event.self_cpu_time_total
        if taken:
            times[event.key] = (taken / 1e6, event.count)
    busy_s = sum(taken for taken, _ in times.values())
    record.line("steps", wall_ms=wall_s * 1e3, busy_ms=busy_s * 1e3, idle=1 - busy_s / wall_s)
    longest = sorted(times.items(), key=lambda item: -item[1][0])[:LINES]
    for key, (taken, count) in longest:
        each_us = taken / count * 1e6
        record.line(key[:60], share=taken / busy_s, each_us=each_us, count=count)
