"""The engine on a model of real shape: start, prefill, decode at several widths, and whole runs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import torch

from bench.device import roofline as floors
from bench.device.layered_models import LAYERED, LayeredShape, write_layered_checkpoint
from bench.device.machine import Bench, Roofline, measure_roofline
from bench.device.memory import MemoryStages, deviations, used
from bench.device.model_shapes import SHAPES, Shape, write_checkpoint
from bench.device.result_log import Record
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime.drafts.load import mtp_of, open_drafter
from penstock.runtime.gpu.drafters import size_drafter
from penstock.runtime.gpu.load import (
    Observe,
    build_runtime,
    ignore_stages,
    start_gpu_runtime,
    weight_bytes,
)
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.runtime import GpuRuntime

AnyShape: TypeAlias = Shape | LayeredShape
GREEDY = Sampling(temperature=0.0)
LAYERS = {"qwen3-30b-a3b": 16}
"""Number of layers measured, for models whose whole checkpoint would fill the disk."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a measurement: decode widths, tokens of prompt and answers, token budget."""

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
    """Run the section of one model."""
    whole = LAYERED[name] if name in LAYERED else SHAPES[name]
    if bench.rehearsed:
        whole = whole.small()
    shape = whole
    if isinstance(whole, Shape):
        shape = replace(whole, layers=min(whole.layers, LAYERS.get(name, whole.layers)))
    sizes = SMALL if bench.rehearsed else FULL
    layers = f"{shape.layers} of {whole.layers} layers"
    record.title(f"{name}, {layers}, {sizes.prompt} tokens of context, bfloat16")
    roofline = measure_roofline(bench)
    with open_runtime(bench, record, shape, sizes, **_snapshots(shape, sizes)) as runtime:
        _check(runtime, shape, sizes)
        for width in sizes.widths:
            _decode(bench, record, runtime, shape, sizes, width, roofline)
        if whole_run:
            most = max_concurrency(runtime, sizes)
            for width in (most, sizes.widths[-1] // 4):
                _run(record, runtime, shape, sizes, width, roofline)
        record.note(f"captured, in this order: {runtime.captured}")
        if bench.device != "cpu":
            record.line("peak memory", gib=torch.cuda.max_memory_reserved() / 2**30)


@contextmanager
def open_runtime(
    bench: Bench, record: Record, shape: AnyShape, sizes: Sizes, **changes: Any
) -> Iterator[GpuRuntime]:
    """Open the runtime of a checkpoint of `shape`; close it at the end."""
    began = time.perf_counter()
    folder = cached_checkpoint(shape, bench.device)
    record.line("write checkpoint", s=time.perf_counter() - began)
    if bench.device != "cpu":
        torch.cuda.empty_cache()  # the memory plan counts only memory that is free in the driver
    stages = MemoryStages(bench.device)
    with stages:
        began = time.perf_counter()
        options = {"kernel_backend": bench.kernels, **changes}
        runtime = start(bench, folder, sizes, stages.reached, **options)
        record.line("load, first graphs", s=time.perf_counter() - began, target_s=10)
        record.note(runtime.report)
        _largest_steps(runtime, sizes)
        stages.served()
    _record_memory(record, shape.name, stages.found())
    yield runtime
    runtime.close()
    if bench.device != "cpu":
        torch.cuda.empty_cache()


def _snapshots(shape: AnyShape, sizes: Sizes) -> dict[str, Any]:
    """Return the settings that keep the states after the prompts of all rows, so that prompts are
    found again (`start_decoding`)."""
    if isinstance(shape, Shape) or not shape.snapshot_bytes:
        return {}
    needed = 2 * sizes.widths[-1] * shape.snapshot_bytes
    return {"enable_prefix_caching": True, "state_snapshot_memory_mb": (needed >> 20) + 1}


def cached_checkpoint(shape: AnyShape, device: str) -> Path:
    """Return the folder of a checkpoint of `shape`, written once and kept for later sections:
    generating and writing 16 GB takes 20 s. `config.json` is written last, so an incomplete folder
    is written again."""
    name = f"{shape.name}-{shape.layers}x{shape.width}"
    if isinstance(shape, LayeredShape) and shape.has_mtp:
        name += "-mtp"
    folder = Path(tempfile.gettempdir()) / "penstock-checkpoints" / name / shape.name
    if not (folder / "config.json").exists():
        if isinstance(shape, Shape):
            write_checkpoint(shape, folder, device)
        else:
            write_layered_checkpoint(shape, folder, device)
    return folder


def start(
    bench: Bench, folder: Path, sizes: Sizes, observe: Observe = ignore_stages, **changes: Any
) -> GpuRuntime:
    """Start the runtime of a checkpoint. A rehearsal holds everything in float32, and a tied
    embedding table twice."""
    settings = engine_settings(sizes, **changes)
    files = files_at(folder, folder.name)
    model = load_model(files, settings.dtype, float8="float8", mtp=mtp_of(settings))
    drafts = open_drafter(files, model, settings, None, "float8")
    if bench.device != "cpu":
        return start_gpu_runtime(model, settings, bench.device, observe=observe, drafts=drafts)
    wide = msgspec.structs.replace(settings, dtype="f32")
    weights = weight_bytes(model, wide, bench.ops)
    weights += 4 * model.spec.vocab_size * model.spec.hidden_size * model.spec.tied_head
    drafter = size_drafter(drafts, wide, bench.ops)
    plan = plan_device_memory(model.spec, weights, wide, 1 << 30, drafter)
    return build_runtime(model, plan, wide, bench.ops, observe=observe, drafts=drafts)


def _largest_steps(runtime: GpuRuntime, sizes: Sizes) -> None:
    """Run the largest possible steps: the prompts of all rows, then one token of each."""
    core = EngineCore.for_runtime(runtime, engine_settings(sizes))
    step_until_prefilled(core, submit_requests(core, sizes, sizes.widths[-1], 3, "largest-"))
    while core.has_work:
        core.step()


def _record_memory(record: Record, model: str, found: dict[str, Any]) -> None:
    record.table("memory", {"model": model, **found}, shown=used(found))
    for wrong in deviations(found):
        record.note(f"not as the formula says: {wrong}")


def engine_settings(sizes: Sizes, **changes: Any) -> EngineSettings:
    return EngineSettings(
        model="bench",
        dtype="auto",
        max_model_len=sizes.context,
        max_num_seqs=sizes.widths[-1],
        max_num_batched_tokens=sizes.budget,
        **({"enable_prefix_caching": False} | changes),
    )


def submit_requests(
    core: EngineCore,
    sizes: Sizes,
    width: int,
    new: int,
    label: str = "",
    adapters: Sequence[str] = (),
) -> set[str]:
    """Submit `width` greedy requests and return their ids. The prompts differ from the first token
    on; the adapters are assigned in turn."""
    vocab = core.info.vocab_size - 10
    ids = []
    for index in range(width):
        tokens = tuple((7919 * index + 31 * place) % vocab + 3 for place in range(sizes.prompt))
        ids.append(f"{label}{index}")
        core.submit(
            TokenRequest(
                id=ids[-1],
                token_ids=tokens,
                sampling=GREEDY,
                seed=index,
                max_tokens=new,
                adapter=adapters[index % len(adapters)] if adapters else "",
            )
        )
    return set(ids)


def step_until_prefilled(core: EngineCore, waiting: set[str]) -> int:
    """Step until each of the waiting requests has a token; return the number of tokens
    generated."""
    tokens = 0
    while waiting:
        chunks = core.step()
        errors = [chunk.error for chunk in chunks if chunk.error]
        assert not errors, errors[0]
        tokens += sum(len(chunk.tokens) for chunk in chunks)
        waiting -= {chunk.id for chunk in chunks if chunk.tokens}
    return tokens


def start_decoding(
    runtime: GpuRuntime, sizes: Sizes, width: int, new: int
) -> tuple[EngineCore, float]:
    """Start an engine whose `width` rows all begin to decode in one step; return it and the seconds
    that their prompts took by themselves: the prompts are computed first, and then found."""
    core = EngineCore.for_runtime(runtime, engine_settings(sizes, enable_prefix_caching=True))
    began = time.perf_counter()
    step_until_prefilled(core, submit_requests(core, sizes, width, 1, "prompt-"))
    prompts_s = time.perf_counter() - began
    step_until_prefilled(core, submit_requests(core, sizes, width, new))
    return core, prompts_s


def decode_steps_s(core: EngineCore, width: int) -> list[float]:
    """Return the times of the steps in which all rows get a token, until the end."""
    steps, last = [], time.perf_counter()
    while core.has_work:
        tokens = sum(len(chunk.tokens) for chunk in core.step())
        now = time.perf_counter()
        if tokens == width:
            steps.append(now - last)
        last = now
    return steps


def _check(runtime: GpuRuntime, shape: AnyShape, sizes: Sizes) -> None:
    """Check that logits are finite and compile kernels, before anything is measured."""
    for prompt, width in ((8, 1), (sizes.prompt, 1), (sizes.prompt, sizes.widths[-1] // 4)):
        core, _ = start_decoding(runtime, replace(sizes, prompt=prompt), width, 4)
        found = len(decode_steps_s(core, width))
        assert found, f"{shape.name}: no step gave {width} tokens"


def _decode(
    bench: Bench,
    record: Record,
    runtime: GpuRuntime,
    shape: AnyShape,
    sizes: Sizes,
    width: int,
    roofline: Roofline,
) -> None:
    """Record the decode of `width` rows: the median step, and the same graph with empty
    contexts."""
    runtime.warm(width)
    core, prompts_s = start_decoding(runtime, sizes, width, sizes.new)
    steps = decode_steps_s(core, width)
    step_s = statistics.median(steps)
    floor = floors.decode_s(shape, width, sizes.prompt + sizes.new / 2, roofline)
    prompts = floors.prompt_s(shape, width * sizes.prompt, roofline)
    bare_s = bench.wall_s(lambda: runtime.dummy_run(width), 20)
    record.line(
        f"decode {width}",
        ms=step_s * 1e3,
        tok_s=width / step_s,
        floor_ms=floor * 1e3,
        of_floor=floor / step_s,
        bare_ms=bare_s * 1e3,
        p90_ms=1e3 * sorted(steps)[int(0.9 * len(steps))],
        prompt_tok_s=width * sizes.prompt / prompts_s,
        of_prompt_floor=prompts / prompts_s,
    )


def max_concurrency(runtime: GpuRuntime, sizes: Sizes) -> int:
    """Return the largest number of requests, up to the largest width, whose whole runs fit the
    cache at once; more would measure preemption. It is a multiple of 32 or the largest width."""
    tokens = runtime.info.cache_blocks * runtime.info.block_size
    fitting = tokens // (sizes.prompt + sizes.run_new + runtime.info.block_size)
    widest = sizes.widths[-1]
    return widest if fitting >= widest else max(fitting // 32 * 32, 1)


def _run(
    record: Record,
    runtime: GpuRuntime,
    shape: AnyShape,
    sizes: Sizes,
    width: int,
    roofline: Roofline,
) -> None:
    """Record a run of `width` requests submitted at once, from their prompts to their last
    tokens."""
    core = EngineCore.for_runtime(runtime, engine_settings(sizes))
    began = time.perf_counter()
    tokens = step_until_prefilled(core, submit_requests(core, sizes, width, sizes.run_new))
    first_s = time.perf_counter() - began
    while core.has_work:
        tokens += sum(len(chunk.tokens) for chunk in core.step())
    total_s = time.perf_counter() - began
    floor = floors.run_s(shape, width, sizes.prompt, sizes.run_new, roofline)
    record.line(
        f"run {width} x {sizes.prompt}/{sizes.run_new}",
        s=total_s,
        out_tok_s=tokens / total_s,
        floor_s=floor,
        of_floor=floor / total_s,
        ttft_last_s=first_s,
        preemptions=core.gauges().preemptions,
    )
