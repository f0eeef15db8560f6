"""The engine on a model of true shape: start, prompts, decode at several widths, whole runs; and
what a step spends its time on."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.device import floors
from bench.device.machine import Bench, Ceilings, ceilings
from bench.device.record import Record
from bench.device.shapes import SHAPES, Shape, write_checkpoint
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.models.loading import load_model
from penstock.models.sources import files_at
from penstock.runtime.gpu import GpuRuntime
from penstock.runtime.gpu_graphs import sizes_up_to
from penstock.runtime.gpu_load import place, start_gpu_runtime
from penstock.runtime.gpu_memory import plan_device_memory

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is asked of a model."""

    widths: tuple[int, ...]
    prompt: int
    new: int
    run_new: int
    budget: int

    @property
    def context(self) -> int:
        return self.prompt + self.run_new + 64


FULL = Sizes((1, 8, 32, 64, 128, 256), 1024, 96, 1024, 8192)
SMALL = Sizes((1, 4), 24, 6, 8, 64)


def measure(bench: Bench, record: Record, name: str, whole_run: bool = True) -> None:
    """The section of one model."""
    shape = SHAPES[name].small() if bench.rehearsed else SHAPES[name]
    sizes = SMALL if bench.rehearsed else FULL
    record.title(f"{name}, {sizes.prompt} tokens of context, bfloat16")
    limits = ceilings(bench)
    with opened(bench, record, shape, sizes) as runtime:
        _check(runtime, shape, sizes)
        for width in sizes.widths:
            _decode(bench, record, runtime, shape, sizes, width, limits)
        if whole_run:
            for width in (sizes.widths[-1], sizes.widths[-1] // 4):
                _run(record, runtime, shape, sizes, width, limits)
        record.note(f"captured, in this order: {runtime.captured}")
        if bench.device != "cpu":
            record.line("peak memory", gib=torch.cuda.max_memory_reserved() / 2**30)


@contextmanager
def opened(
    bench: Bench, record: Record, shape: Shape, sizes: Sizes, **changes: Any
) -> Iterator[GpuRuntime]:
    """The runtime of a checkpoint of `shape` that is written for it."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    try:
        began = time.perf_counter()
        write_checkpoint(shape, folder / shape.name, bench.device)
        record.line("write checkpoint", s=time.perf_counter() - began)
        began = time.perf_counter()
        runtime = start(bench, folder / shape.name, sizes, kernels=bench.kernels, **changes)
        record.line("load, first graphs", s=time.perf_counter() - began, target_s=10)
        record.note(runtime.report)
        yield runtime
        runtime.close()
        if bench.device != "cpu":
            torch.cuda.empty_cache()
    finally:
        shutil.rmtree(folder)


def start(bench: Bench, folder: Path, sizes: Sizes, **changes: Any) -> GpuRuntime:
    settings = engine_settings(sizes, **changes)
    model = load_model(files_at(folder, folder.name), settings.dtype)
    weights = (folder / "model.safetensors").stat().st_size
    if bench.device != "cpu":
        return start_gpu_runtime(model, weights, settings, bench.device)
    plan = plan_device_memory(
        model.spec, weights, settings, 1 << 30, sizes_up_to(settings.max_seqs)
    )
    return place(model, plan, settings, bench.ops)


def engine_settings(sizes: Sizes, **changes: Any) -> EngineSettings:
    return EngineSettings(
        model="bench",
        dtype="auto",
        context_tokens=sizes.context,
        max_seqs=sizes.widths[-1],
        token_budget=sizes.budget,
        **({"prefix_cache_n": 0} | changes),
    )


@dataclass(slots=True)
class Burst:
    """What a burst of requests took: the time of each step, and when all had their first token."""

    steps_s: list[float]
    first_s: float
    total_s: float
    tokens: int


def burst(runtime: GpuRuntime, sizes: Sizes, width: int, new: int, **sampling: Any) -> Burst:
    """`width` requests at once through the engine's own loop."""
    core = EngineCore.over(runtime, engine_settings(sizes))
    vocab = runtime.info.vocab_size
    waiting = set()
    for index in range(width):
        ids = tuple((7919 * index + 31 * place) % (vocab - 10) + 3 for place in range(sizes.prompt))
        core.submit(
            TokenRequest(
                id=str(index),
                token_ids=ids,
                sampling=Sampling(**sampling) if sampling else GREEDY,
                seed=index,
                max_tokens=new,
            )
        )
        waiting.add(str(index))
    began = last = time.perf_counter()
    steps, first_s, tokens = [], 0.0, 0
    while core.has_work:
        chunks = core.step()
        now = time.perf_counter()
        if waiting:
            waiting -= {chunk.id for chunk in chunks if chunk.tokens}
            first_s = now - began
        else:
            steps.append(now - last)
        last = now
        tokens += sum(len(chunk.tokens) for chunk in chunks)
        errors = [chunk.error for chunk in chunks if chunk.error]
        assert not errors, errors[0]
    return Burst(steps, first_s, last - began, tokens)


def _check(runtime: GpuRuntime, shape: Shape, sizes: Sizes) -> None:
    """Nothing is measured of a model whose logits are not numbers, nor while kernels compile."""
    short = replace(sizes, prompt=8)
    for asked, width in ((short, 1), (sizes, 1), (sizes, sizes.widths[-1] // 4)):
        found = burst(runtime, asked, width, 4)
        assert found.tokens == 4 * width, f"{shape.name} drew {found.tokens} of {4 * width} tokens"


def _decode(
    bench: Bench,
    record: Record,
    runtime: GpuRuntime,
    shape: Shape,
    sizes: Sizes,
    width: int,
    limits: Ceilings,
) -> None:
    """Decode of `width` rows: the median step, and beside it the graph without contexts."""
    runtime.warm(width)
    found = burst(runtime, sizes, width, sizes.new)
    step_s = statistics.median(found.steps_s[2:-2] or found.steps_s)
    floor = floors.decode_s(shape, width, sizes.prompt + sizes.new / 2, limits)
    prompts = floors.prompt_s(shape, width * sizes.prompt, limits)
    bare_s = bench.wall_s(lambda: runtime.replay_nobody(width), 20)
    record.line(
        f"decode {width}",
        ms=step_s * 1e3,
        tok_s=width / step_s,
        floor_ms=floor * 1e3,
        of_floor=floor / step_s,
        bare_ms=bare_s * 1e3,
        prompt_tok_s=width * sizes.prompt / found.first_s,
        of_prompt_floor=prompts / found.first_s,
    )


def _run(
    record: Record, runtime: GpuRuntime, shape: Shape, sizes: Sizes, width: int, limits: Ceilings
) -> None:
    found = burst(runtime, sizes, width, sizes.run_new)
    floor = floors.run_s(shape, width, sizes.prompt, sizes.run_new, limits)
    record.line(
        f"run {width} x {sizes.prompt}/{sizes.run_new}",
        s=found.total_s,
        out_tok_s=found.tokens / found.total_s,
        floor_s=floor,
        of_floor=floor / found.total_s,
        ttft_last_s=found.first_s,
        step_p50_ms=1e3 * statistics.median(found.steps_s),
        step_p99_ms=1e3 * sorted(found.steps_s)[int(0.99 * len(found.steps_s))],
    )
