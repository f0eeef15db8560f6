"""Memory and CPU cores that this process may use, within the limits of its control groups."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Return the bytes of memory that this process can still use, or None if the system does not
    report them.

    The result is the smaller of the machine's available memory and the memory left in the control
    group of this process or one of its ancestors. `proc` and `cgroups`: the folders to read.
    """
    available = [*_machine_bytes(proc), *_group_bytes(proc, cgroups)]
    return max(0, min(available)) if available else None


def available_cores(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the number of cores that this process may run on, limited by the CPU quotas of its
    control groups, which are rounded down to whole cores; at least 1. `proc` and `cgroups`: the
    folders to read."""
    cores = len(os.sched_getaffinity(0))
    for group, version in _groups(proc, cgroups, "cpu"):
        if version == 2:
            quota, _, period = "".join(_lines(group / "cpu.max")).partition(" ")
        else:
            quota = "".join(_lines(group / "cpu.cfs_quota_us"))
            period = "".join(_lines(group / "cpu.cfs_period_us"))
        if quota.isdigit() and period.isdigit():
            cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def return_freed_memory() -> None:
    """Give memory that was freed back to the system, if the C library can (glibc). Without this
    call it keeps the arrays that loading has freed, because later ones lie above them."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _machine_bytes(proc: Path) -> list[int]:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            return [int(line.split()[1]) * 1024]
    return []


def _group_bytes(proc: Path, cgroups: Path) -> list[int]:
    """Return the bytes of memory left in each control group of this process that has a memory
    limit: limit - usage + reclaimable file pages."""
    available = []
    for group, version in _groups(proc, cgroups, "memory"):
        names = ("memory.max", "memory.current")
        if version == 1:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, usage = (_number(group / name) for name in names)
        if limit is not None and usage is not None:
            available.append(limit - usage + _reclaimable(group / "memory.stat"))
    return available


def _groups(proc: Path, cgroups: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Yield (folder, cgroup version 1 or 2) of each control group of this process that has the
    controller `controller`, innermost group first."""
    for line in _lines(proc / "self" / "cgroup"):
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            root, version = cgroups, 2
        elif controller in controllers.split(","):
            root, version = cgroups / controller, 1
        else:
            continue
        group = root / path.lstrip("/")
        yield group, version
        while group != root and root in group.parents:
            group = group.parent
            yield group, version


def _reclaimable(stat: Path) -> int:
    for line in _lines(stat):
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = "".join(_lines(path))
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
