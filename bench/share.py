"""Share of its speed that a server keeps while another process occupies one core."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

from bench.harness.compare import medians
from bench.harness.load_client import figures
from bench.harness.machine_facts import facts, wait_until_quiet
from bench.harness.targets import Target
from bench.harness.workloads import ALL, Prompts

DECODE = ALL["decode-1"]


def burn(core: int) -> None:
    """Keep one core busy until killed."""
    os.sched_setaffinity(0, {core})
    while True:
        pass


def measure(target: Target, repeats: int) -> dict[str, Any]:
    """Measure decode-1 alone and beside a busy process on the last core, and their ratio."""
    target.start()
    try:
        wait_until_quiet()
        alone = _decode(target, repeats)
        busy = multiprocessing.Process(target=burn, args=(max(os.sched_getaffinity(0)),))
        busy.start()
        try:
            shared = _decode(target, repeats)
        finally:
            busy.kill()
            busy.join()
    finally:
        target.stop()
    kept = shared[DECODE.figure] / alone[DECODE.figure]
    row = {DECODE.name: alone, "shared": shared, "share_kept": round(kept, 3)}
    return {"machine": facts(), "targets": {target.name: row}}


def _decode(target: Target, repeats: int) -> dict[str, float]:
    prompts = Prompts(seed=7)
    target.burst(prompts.take(DECODE), 8)
    return medians(
        [
            figures(target.burst(prompts.take(DECODE), DECODE.new), DECODE.prompt)
            for _ in range(repeats)
        ]
    )
