"""Time of servers from their command to the first answer, with files in the page cache."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.harness.machine_facts import facts
from bench.harness.targets import Target


def measure(targets: Sequence[Target], repeats: int) -> dict[str, Any]:
    """Start and stop the targets in turns; the first turn only warms the page cache.

    `startup_s` is the median and `least_startup_s` the minimum, which noise of the machine affects
    least.
    """
    taken: dict[str, list[float]] = {target.name: [] for target in targets}
    for _ in range(1 + repeats):
        for target in targets:
            try:
                target.start()
            finally:
                target.stop()
            taken[target.name].append(target.startup_s)
    rows = {
        name: {
            "startup_s": round(statistics.median(seconds[1:]), 2),
            "least_startup_s": round(min(seconds[1:]), 2),
        }
        for name, seconds in taken.items()
    }
    return {"machine": facts(), "targets": rows}
