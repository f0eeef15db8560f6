"""The device of a run, its two peak rates, and how a piece of work on it is timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from bench.device.result_log import Record
from penstock.config import EngineSettings
from penstock.kernels.reference import ReferenceOps
from penstock.runtime.gpu.load import serving_ops


@dataclass(frozen=True, slots=True)
class Bench:
    """A run: on a GPU, or rehearsed on the CPU with sizes that any machine takes."""

    device: str
    dtype: torch.dtype
    ops: Any
    rehearsed: bool
    kernels: Literal["auto", "triton"] = "auto"

    def sync(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any]) -> float:
        """The median time of a call whose inputs are not in the L2 cache."""
        if self.device == "cpu":
            return _timed(call, 3)
        from triton.testing import do_bench

        return float(do_bench(call, warmup=10, rep=40, return_mode="median")) / 1e3

    def wall_s(self, call: Callable[[], Any], repeats: int) -> float:
        """The time of one of `repeats` calls that follow each other, on whatever stream."""
        call()
        self.sync()
        began = time.perf_counter()
        for _ in range(repeats):
            call()
        self.sync()
        return (time.perf_counter() - began) / repeats

    def in_a_row_s(self, call: Callable[[], Any], repeats: int) -> float:
        """The time of one of `repeats` calls that follow each other on the current stream, by its
        events."""
        call()
        self.sync()
        if self.device == "cpu":
            return _timed(call, repeats)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / repeats


def _timed(call: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def open_bench(rehearsed: bool, kernels: Literal["auto", "triton"]) -> Bench:
    """The GPU that is there with the ops that serve on it, or the CPU for a rehearsal."""
    if rehearsed:
        torch.set_num_threads(1)  # more only get into each other's way at these sizes
        return Bench("cpu", torch.float32, ReferenceOps(), True, kernels)
    torch.cuda.set_device(0)
    from penstock.kernels.cuda.launcher import serve_installed  # imports Triton

    serve_installed("cuda:0")  # the packaged kernels, as an engine has them
    settings = EngineSettings(kernel_backend=kernels)
    ops = serving_ops(settings, "cuda:0", torch.bfloat16)
    return Bench("cuda:0", torch.bfloat16, ops, False, kernels)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Bytes a second of a copy, read and written; operations a second of a product in bfloat16."""

    bytes_s: float
    operations_s: float

    def floor_s(self, moved_bytes: float, operations: float = 0.0) -> float:
        """No work of so many bytes and operations takes less."""
        return max(moved_bytes / self.bytes_s, operations / self.operations_s)


def measure_roofline(bench: Bench) -> Roofline:
    """Both peak rates, measured now."""
    copied, copying_s = _copy(bench, 1 << (22 if bench.rehearsed else 32))
    width = 256 if bench.rehearsed else 8192
    left, right = (
        torch.randn(width, width, dtype=bench.dtype, device=bench.device) for _ in range(2)
    )
    product_s = bench.in_a_row_s(lambda: left @ right, 20)
    return Roofline(2 * copied / copying_s, 2 * width**3 / product_s)


def _copy(bench: Bench, size_bytes: int) -> tuple[int, float]:
    """Bytes, and the seconds that copying them takes. The memory is given back."""
    source = torch.empty(size_bytes, dtype=torch.uint8, device=bench.device).random_()
    target = torch.empty_like(source)
    return size_bytes, bench.in_a_row_s(lambda: target.copy_(source), 10)


def measure(bench: Bench, record: Record) -> None:
    """The section `limits`."""
    record.title("what the device can do at most")
    if bench.device != "cpu":
        facts = torch.cuda.get_device_properties(0)
        record.line(
            facts.name,
            multiprocessors=facts.multi_processor_count,
            memory_gib=facts.total_memory / 2**30,
            l2_mib=facts.L2_cache_size / 2**20,
            torch=torch.__version__,
        )
    for serves in bench.ops.registry.explain():
        record.note(serves)
    found = measure_roofline(bench)
    record.line("copy", tb_s=found.bytes_s / 1e12)
    record.line("product", tflop_s=found.operations_s / 1e12)
