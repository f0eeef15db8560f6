"""The engine alone: in a thread of this process, without HTTP or tokenizer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from bench.harness.compare import medians
from bench.harness.load_client import Trace, figures
from bench.harness.machine_facts import facts
from bench.harness.workloads import Prompts, Workload
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.local import LocalEngine
from penstock.engine.types import TokenRequest


def measure(model: str, workloads: Sequence[Workload], repeats: int) -> dict[str, Any]:
    """Return the figures of each workload, in the format of `compare`."""
    return asyncio.run(_measure(model, workloads, repeats))


async def _measure(model: str, workloads: Sequence[Workload], repeats: int) -> dict[str, Any]:
    began = time.perf_counter()
    engine = await LocalEngine.start(EngineSettings(model=model))
    row: dict[str, Any] = {"startup_s": round(time.perf_counter() - began, 2)}
    for workload in workloads:
        prompts = Prompts(seed=1)
        await _burst(engine, prompts.take(workload)[:2], 2, "warm")
        runs = []
        for repeat in range(repeats):
            label = f"{workload.name}-{repeat}"
            traces = await _burst(engine, prompts.take(workload), workload.new, label)
            runs.append(figures(traces, workload.prompt))
        row[workload.name] = medians(runs)
    await engine.close()
    return {"machine": facts(), "targets": {"penstock": row}}


async def _burst(
    engine: LocalEngine, prompts: list[list[int]], new: int, label: str
) -> list[Trace]:
    start = time.perf_counter()

    async def one(index: int, prompt: list[int]) -> Trace:
        request = TokenRequest(
            id=f"{label}-{index}",
            token_ids=tuple(prompt),
            sampling=Sampling(temperature=0.0),
            seed=0,
            max_tokens=new,
        )
        times = []
        async for chunk in engine.generate(request):
            times += [time.perf_counter() - start] * len(chunk.tokens)
        return Trace(0.0, tuple(times))

    return await asyncio.gather(*(one(i, p) for i, p in enumerate(prompts)))
