"""How even the tokens of open streams come while prompts arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.compare import medians
from bench.load import figures
from bench.machine import facts
from bench.targets import HttpTarget
from bench.workloads import Prompts, Workload

REQUESTS = Workload("arrivals", 40, 512, 64, "out_tok_s")
BURST = 16
LOAD = 0.7
"""Requests arrive at this share of the rate at which the target answers a burst."""


def measure(targets: Sequence[HttpTarget], repeats: int) -> dict[str, Any]:
    """Poisson arrivals at 70 % of each target's own capacity. `itl_ratio`: p99 / p50 of the times
    between tokens, all streams together."""
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
            REQUESTS.name: row,
        }
    return result


def _arrivals(target: HttpTarget, seed: int) -> dict[str, float]:
    drawn = Prompts(seed).take(REQUESTS)
    answered = figures(target.burst(drawn[:BURST], REQUESTS.new), REQUESTS.prompt)
    rate = LOAD * answered["out_tok_s"] / REQUESTS.new
    row = figures(target.arrivals(Prompts(seed + 1).take(REQUESTS), REQUESTS.new, rate), 512)
    return row | {"rate_per_s": rate, "itl_ratio": row["itl_p99_ms"] / row["itl_p50_ms"]}
