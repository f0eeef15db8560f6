"""Facts about the machine and the commit, which every result carries."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

FEATURES = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


QUIET_PERCENT = 10.0  # for all cores together
LONGEST_WAIT_S = 15.0


def facts() -> dict[str, Any]:
    """Return date, commit, processor, cores, instruction sets and memory bandwidth."""
    text = Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*: (.*)", text)
    flags = re.search(r"flags\s*: (.*)", text)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "cpu": name.group(1) if name else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "features": [f for f in FEATURES if flags and f in flags.group(1).split()],
        "dram_read_gb_s": round(read_bandwidth(1 << 29), 1),
    }


def read_bandwidth(size_bytes: int, repeats: int = 3) -> float:
    """Measure the GB/s at which all cores together read memory (numpy sums over int64), best of
    `repeats`."""
    cores = len(os.sched_getaffinity(0))
    parts = np.array_split(np.ones(size_bytes // 8, dtype=np.int64), cores)
    best = float("inf")
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(repeats):
            began = time.perf_counter()
            list(pool.map(np.sum, parts))  # releases the GIL
            best = min(best, time.perf_counter() - began)
    return size_bytes / best / 1e9


def python_loop_us(core: int, repeats: int = 200) -> dict[str, int]:
    """Measure the CPU time of a fixed piece of Python, i.e. the current speed of a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        total, kept = 0, {}
        for index in range(3000):
            kept[index & 63] = (total, index)
            total += len(str(index))
        times.append(time.thread_time() - began)
    os.sched_setaffinity(0, before)
    times.sort()
    return {"least": round(1e6 * times[0]), "median": round(1e6 * times[len(times) // 2])}


def wait_until_quiet() -> bool:
    """Wait until no process computes any more. Returns False if one still does after
    `LONGEST_WAIT_S`.

    Some engines poll for the next request for seconds after their work, which would take a core
    from the next target.
    """
    end = time.monotonic() + LONGEST_WAIT_S
    while psutil.cpu_percent(interval=0.2) > QUIET_PERCENT:
        if time.monotonic() > end:
            return False
    return True


class Clock:
    """Measures wall time, and the share of CPU time that the hypervisor gave to other guests."""

    def __init__(self) -> None:
        self._began, self._stolen_s = time.monotonic(), _stolen_s()

    def stolen_share(self) -> float:
        """Return the share stolen since the clock was made; 0 if the system does not report it."""
        cores_s: float = (time.monotonic() - self._began) * psutil.cpu_count()
        return (_stolen_s() - self._stolen_s) / cores_s


def _stolen_s() -> float:
    return getattr(psutil.cpu_times(), "steal", 0.0)


def memory_mib(pid: int) -> int:
    """Return the proportional set size of a process and its descendants."""
    total = 0
    for process in tree(pid):
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(
            int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")
        )
    return total // 1024


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    pids = [pid]
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return pids
    for task in tasks:
        try:
            children = (task / "children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            pids += tree(int(child))
    return pids
