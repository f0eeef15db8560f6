"""Measure targets side by side: their bursts alternate, and figures are medians.

The machine is noisy and shared, so only the ratio of two targets in one run is meaningful.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness.load_client import Refused, figures
from bench.harness.machine_facts import Clock, facts, wait_until_quiet
from bench.harness.targets import Target
from bench.harness.workloads import Prompts, Workload

STOLEN_SHARE = 0.03
"""A burst that lost more than this share of the cores to other guests is measured again."""
TRIES = 4
WARM_UP_PROMPT = 512
"""The longest prompt, in tokens, of the burst before those that count."""


def compare(
    targets: Sequence[Target], workloads: Sequence[Workload], repeats: int
) -> dict[str, Any]:
    """Start every target, alternate the workloads among them, stop them.

    A target that refuses a workload has no figures for it, but a reason. Returns {"machine",
    "targets": {name: {"startup_s", "memory_mib", workload: figures or {"refused": reason}}}}.
    """
    result: dict[str, Any] = {"machine": facts(), "targets": {}}
    try:
        for target in targets:
            target.start()
            result["targets"][target.name] = {"startup_s": round(target.startup_s, 2)}
            _say(f"{target.name}: first answer after {target.startup_s:.2f} s")
        for workload in workloads:
            for name, row in _alternate(targets, workload, repeats).items():
                result["targets"][name][workload.name] = row
                said = row.get("refused") or f"{row[workload.figure]:9.1f} tok/s"
                _say(f"{workload.name:14} {name:20} {said}")
        for target in targets:
            result["targets"][target.name]["memory_mib"] = target.memory_mib()
    finally:
        for target in targets:
            target.stop()
    return result


def _alternate(
    targets: Sequence[Target], workload: Workload, repeats: int
) -> dict[str, dict[str, Any]]:
    prompts = Prompts(seed=workload.prompt * 1000 + workload.concurrency)
    runs: dict[str, list[dict[str, float]]] = {target.name: [] for target in targets}
    refusals: dict[str, str] = {}
    for repeat in range(repeats + 1):
        warm_up = repeat == 0
        batch = prompts.take(workload)
        for target in targets:
            if target.name in refusals:
                continue
            try:
                if warm_up:
                    _warm_up(target, workload, batch)
                else:
                    runs[target.name].append(_measured(target, workload, batch, prompts))
            except Refused as error:
                refusals[target.name] = str(error)
    rows: dict[str, dict[str, Any]] = {name: medians(own) for name, own in runs.items()}
    return rows | {name: {"refused": reason} for name, reason in refusals.items()}


def _warm_up(target: Target, workload: Workload, batch: list[list[int]]) -> None:
    """Run a short burst, or one prompt of the workload so that its prefix is in the cache."""
    if workload.shared:
        target.burst(batch[:1], 1)
        return
    target.burst([prompt[:WARM_UP_PROMPT] for prompt in batch[:2]], min(workload.new, 8))


def _measured(
    target: Target, workload: Workload, batch: list[list[int]], prompts: Prompts
) -> dict[str, float]:
    """Measure one burst of `batch`, repeated with new prompts while other guests use the cores;
    return the try that lost least to them."""
    tries: list[dict[str, float]] = []
    while len(tries) < TRIES:
        if not wait_until_quiet():
            _say(f"{workload.name}: the machine is busy before {target.name}'s burst")
        clock = Clock()
        traces = target.burst(batch, workload.new)
        tries.append({"stolen_share": clock.stolen_share(), **figures(traces, workload.prompt)})
        if tries[-1]["stolen_share"] <= STOLEN_SHARE:
            break
        batch = prompts.take(workload)
    return min(tries, key=lambda one: one["stolen_share"])


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    keys = set().union(*runs)
    return {k: round(statistics.median(r[k] for r in runs if k in r), 2) for k in sorted(keys)}


def table(result: dict[str, Any], workloads: Sequence[Workload], ours: str) -> str:
    """Format the result as a Markdown table, with our ratio to the best of the others."""
    names = list(result["targets"])
    peers = [name for name in names if name != ours]
    lines = ["| figure | " + " | ".join(names) + " | ours / best |"]
    lines.append("|" + "---|" * (len(names) + 2))
    for workload in workloads:
        values = {n: result["targets"][n][workload.name].get(workload.figure, 0.0) for n in names}
        best = max((values[n] for n in peers), default=0.0)
        ratio = f"{values[ours] / best:.2f}" if best else "-"
        cells = " | ".join(f"{values[n]:,.0f}" for n in names)
        lines.append(f"| {workload.name}, tok/s | {cells} | {ratio} |")
    rows = {
        "startup_s": "start to first answer, s",
        "least_startup_s": "start to first answer, minimum, s",
        "memory_mib": "memory, MiB",
        "share_kept": "share kept beside a busy process",
        "itl_ratio": "inter-token latency p99 / p50 while prompts arrive",
    }
    for key, title in rows.items():
        if not any(key in result["targets"][n] for n in names):
            continue
        cells = " | ".join(f"{result['targets'][n].get(key, '-')}" for n in names)
        lines.append(f"| {title} | {cells} | |")
    return "\n".join(lines)


def save(result: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
