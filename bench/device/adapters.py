"""Cost of adapters in a decode step, beside the floor of their bytes, and cost of loading one for
the steps that run meanwhile."""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

from bench.device import roofline as floors
from bench.device.engine import (
    FULL,
    SMALL,
    Sizes,
    decode_steps_s,
    engine_settings,
    open_runtime,
    step_until_prefilled,
    submit_requests,
)
from bench.device.machine import Bench, measure_roofline
from bench.device.model_shapes import SHAPES, Shape
from bench.device.result_log import Record
from penstock.config import LoraSettings
from penstock.engine.core import EngineCore
from penstock.engine.types import AdapterSource
from penstock.runtime.gpu.cuda_graphs import StepForm
from penstock.runtime.gpu.runtime import GpuRuntime

RANK: Final = 16
ADAPTED: Final = StepForm(samples=True, adapted=True)
TARGET: Final = 0.05
"""Largest loss of throughput accepted for 8 adapters in a batch of 32."""


def measure(bench: Bench, record: Record, name: str) -> None:
    """The section `adapters`."""
    shape, sizes = SHAPES[name], FULL
    if bench.rehearsed:
        shape, sizes = shape.small(), SMALL
    width = sizes.widths[-1] if bench.rehearsed else 32
    counts = (0, 2, 4) if bench.rehearsed else (0, 8, 16)
    record.title(f"{name}, batch {width}, adapters of rank {RANK} on all projections")
    roofline = measure_roofline(bench)
    held = 2 if bench.rehearsed else 1  # a rehearsal holds them in float32
    lora = LoraSettings(max_adapters=held * (counts[-1] + 1), max_rank=RANK)
    folder = Path(tempfile.mkdtemp(prefix="penstock-adapters-"))
    try:
        names = [f"adapter-{index}" for index in range(counts[-1] + 1)]
        for index, one in enumerate(names):
            write_adapter(shape, folder / one, index, bench.device)
        with open_runtime(bench, record, shape, sizes, lora=lora) as runtime:
            runtime.warm(width)
            runtime.warm(width, form=ADAPTED)
            core = EngineCore.for_runtime(
                runtime, engine_settings(sizes, enable_prefix_caching=True, lora=lora)
            )
            for one in names[:-1]:
                record.line(f"load {one}", s=_load(core, folder / one))
            bare_s = 0.0
            for count in counts:
                step_s = _decode_s(core, sizes, width, names[:count])
                bare_s = bare_s or step_s
                floor = floors.decode_s(shape, width, sizes.prompt + sizes.new / 2, roofline)
                record.line(
                    f"decode {width}, {count} adapters",
                    ms=step_s * 1e3,
                    tok_s=width / step_s,
                    loss=1 - bare_s / step_s,
                    loss_by_bytes=floors.adapters_s(shape, RANK, count, roofline) / floor,
                    target=TARGET,
                )
            _empty(bench, record, runtime, width)
            _beside(record, core, sizes, width, folder / names[-1], names[:-1])
    finally:
        shutil.rmtree(folder)


def _decode_s(core: EngineCore, sizes: Sizes, width: int, names: Sequence[str]) -> float:
    """Return the median step of `width` rows, to which the adapters are assigned in turn."""
    step_until_prefilled(
        core, submit_requests(core, sizes, width, 1, f"prompt-{len(names)}-", names)
    )
    step_until_prefilled(
        core, submit_requests(core, sizes, width, sizes.new, f"answer-{len(names)}-", names)
    )
    return statistics.median(decode_steps_s(core, width))


def _empty(bench: Bench, record: Record, runtime: GpuRuntime, width: int) -> None:
    """Compare a graph that supports adapters with one that does not, both without rows."""
    without, able = (
        bench.wall_s(lambda form=form: runtime.dummy_run(width, form), 20)  # type: ignore[misc]
        for form in (StepForm(samples=True), ADAPTED)
    )
    record.line(f"graph of {width}, empty", ms=without * 1e3, able_ms=able * 1e3)


def _beside(
    record: Record,
    core: EngineCore,
    sizes: Sizes,
    width: int,
    folder: Path,
    names: Sequence[str],
) -> None:
    """Record the longest step while an adapter is loaded, and the median of the other steps."""
    step_until_prefilled(core, submit_requests(core, sizes, width, sizes.new, "beside-", names))
    loading, steps = None, []
    others: list[float] = []
    last = time.perf_counter()
    while core.has_work:
        core.step()
        now = time.perf_counter()
        if loading is None and len(others) < sizes.new // 4:
            others.append(now - last)
        elif loading is None:
            loading = core.add_adapter(AdapterSource(folder.name, str(folder)))
        elif not loading.done():
            steps.append(now - last)
        last = now
    if steps and others:
        record.line(
            "steps while an adapter loads",
            count=len(steps),
            longest_ms=max(steps) * 1e3,
            others_ms=statistics.median(others) * 1e3,
        )


def _load(core: EngineCore, folder: Path) -> float:
    """Return the seconds from files to a ready slot."""
    began = time.perf_counter()
    future = core.add_adapter(AdapterSource(folder.name, str(folder)))
    while not future.done():
        core.step()
        time.sleep(1e-3)
    future.result()
    return time.perf_counter() - began


def write_adapter(shape: Shape, folder: Path, seed: int, device: str) -> None:
    """Write a PEFT folder with random bfloat16 factors on every projection of `shape`."""
    source = torch.Generator(device).manual_seed(seed)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {
        "self_attn.q_proj": (q, shape.width),
        "self_attn.k_proj": (kv, shape.width),
        "self_attn.v_proj": (kv, shape.width),
        "self_attn.o_proj": (shape.width, q),
        "mlp.gate_proj": (shape.ff, shape.width),
        "mlp.up_proj": (shape.ff, shape.width),
        "mlp.down_proj": (shape.width, shape.ff),
    }
    tensors = {}
    for layer in range(shape.layers):
        for module, (rows, columns) in sizes.items():
            for factor, extents in (("A", (RANK, columns)), ("B", (rows, RANK))):
                values = torch.randn(*extents, generator=source, device=device).bfloat16().cpu()
                key = f"base_model.model.model.layers.{layer}.{module}.lora_{factor}.weight"
                tensors[key] = values / extents[1] ** 0.5
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": shape.name,
        "r": RANK,
        "lora_alpha": RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({module.split(".")[1] for module in sizes}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
