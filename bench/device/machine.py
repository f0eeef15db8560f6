"""The device of a run, its two peak rates, and the timing of work on it."""

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
    """A run on a GPU, or a rehearsal on the CPU in sizes that fit any machine."""

    device: str
    dtype: torch.dtype
    ops: Any
    rehearsed: bool
    kernels: Literal["auto", "triton"] = "auto"

    def sync(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return the median time of a call whose inputs are not in the L2 cache."""
        if self.device == "cpu":
            return _timed(call, 3)
        from triton.testing import do_bench

        return float(do_bench(call, warmup=10, rep=40, return_mode="median")) / 1e3

    def replay_seconds(self, call: Callable[[], Any]) -> float:
        """Return the median time of a call in a CUDA graph, as decode steps run it: without the
        launches by the CPU, which take longer than a small product."""
        if self.device == "cpu":
            return self.seconds(call)
        call()  # compiles kernels and allocates workspaces
        self.sync()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return self.seconds(graph.replay)

    def wall_s(self, call: Callable[[], Any], repeats: int) -> float:
        """Return the mean wall time of `repeats` consecutive calls, on any stream."""
        call()
        self.sync()
        began = time.perf_counter()
        for _ in range(repeats):
            call()
        self.sync()
        return (time.perf_counter() - began) / repeats

    def in_a_row_s(self, call: Callable[[], Any], repeats: int) -> float:
        """Return the mean time of `repeats` consecutive calls on the current stream, by its
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
    """Open this machine's GPU with the ops that serve on it, or the CPU for a rehearsal."""
    if rehearsed:
        torch.set_num_threads(1)  # more threads only slow each other down at these sizes
        return Bench("cpu", torch.float32, ReferenceOps(), True, kernels)
    torch.cuda.set_device(0)
    from penstock.kernels.cuda.launcher import serve_installed  # imports Triton

    serve_installed("cuda:0")  # the packaged kernels, as an engine has them
    settings = EngineSettings(kernel_backend=kernels)
    ops = serving_ops(settings, "cuda:0", torch.bfloat16)
    return Bench("cuda:0", torch.bfloat16, ops, False, kernels)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Bytes per second of a copy, read plus written; operations per second of a bfloat16
    product."""

    bytes_s: float
    operations_s: float

    def floor_s(self, moved_bytes: float, operations: float = 0.0) -> float:
        """Return the least time in which these bytes and operations are possible."""
        return max(moved_bytes / self.bytes_s, operations / self.operations_s)


def measure_roofline(bench: Bench) -> Roofline:
    """Measure both peak rates."""
    copied, copying_s = _copy(bench, 1 << (22 if bench.rehearsed else 32))
    width = 256 if bench.rehearsed else 8192
    left, right = (
        torch.randn(width, width, dtype=bench.dtype, device=bench.device) for _ in range(2)
    )
    product_s = bench.in_a_row_s(lambda: left @ right, 20)
    return Roofline(2 * copied / copying_s, 2 * width**3 / product_s)


def _copy(bench: Bench, size_bytes: int) -> tuple[int, float]:
    """Return the number of bytes and the seconds of a copy, and free its memory."""
    source = torch.empty(size_bytes, dtype=torch.uint8, device=bench.device).random_()
    target = torch.empty_like(source)
    return size_bytes, bench.in_a_row_s(lambda: target.copy_(source), 10)


def measure(bench: Bench, record: Record) -> None:
    """Run the section `limits`."""
    record.title("peak rates of the device")
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
