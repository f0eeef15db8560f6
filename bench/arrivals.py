"""Inter-token latency of open streams while prompts arrive beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.harness.compare import medians
from bench.harness.load_client import figures, percentile
from bench.harness.machine_facts import facts, wait_until_quiet
from bench.harness.targets import HttpTarget
from bench.harness.workloads import Prompts, Workload

STREAMS = Workload("arrivals", 8, 32, 320, "out_tok_s")
PROMPTS = Workload("prompts", 64, 512, 1, "prompt_tok_s")
LOAD = 0.5
"""Prompts arrive at this share of the rate at which the target prefills them alone."""


def measure(targets: Sequence[HttpTarget], repeats: int) -> dict[str, Any]:
    """Run eight streams, with prompts of 512 tokens arriving at Poisson times until they end.

    `itl_ratio`: p99 / p50 of the streams' inter-token latency. `prompts` and `ttft_*`: number of
    prompts answered meanwhile, and their time to first token.
    """
    result: dict[str, Any] = {"machine": facts(), "targets": {}}
    for target in targets:
        target.start()
        try:
            runs = [_arrivals(target, seed) for seed in range(repeats)]
        finally:
            target.stop()
        row = medians(runs)
        result["targets"][target.name] = {
            "startup_s": round(target.startup_s, 2),
            "itl_ratio": row.pop("itl_ratio"),
            STREAMS.name: row,
        }
    return result


def _arrivals(target: HttpTarget, seed: int) -> dict[str, float]:
    prompts = Prompts(seed)
    wait_until_quiet()
    alone = figures(target.burst(prompts.take(PROMPTS)[:2], PROMPTS.new), PROMPTS.prompt)
    rate = LOAD * alone["prompt_tok_s"] / PROMPTS.prompt
    streams, answered = target.beside(
        prompts.take(STREAMS), STREAMS.new, prompts.take(PROMPTS), rate
    )
    row = figures(streams, STREAMS.prompt)
    first = [trace.ttft for trace in answered]
    return {
        "out_tok_s": row["out_tok_s"],
        "itl_p50_ms": row["itl_p50_ms"],
        "itl_p99_ms": row["itl_p99_ms"],
        "itl_ratio": row["itl_p99_ms"] / row["itl_p50_ms"],
        "rate_per_s": rate,
        "prompts": len(answered),
        "ttft_p50_ms": 1e3 * percentile(first, 0.5),
        "ttft_p99_ms": 1e3 * percentile(first, 0.99),
    }
