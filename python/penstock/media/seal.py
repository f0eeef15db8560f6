"""Takes all rights from a decoding process, before it sees the first bytes of a client."""

from __future__ import annotations

import os
import resource
import time
from typing import Final

from penstock.media import landlock, seccomp
from penstock.media.seccomp import SealError

__all__ = ["SealError", "limit_cpu_time", "seal"]

_NONE: Final = (
    resource.RLIMIT_CORE,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_MEMLOCK,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
)
"""Limits that become 0. Descriptors that are open stay usable."""


def seal(memory_bytes: int) -> None:
    """Leave this process its memory, its CPU time and its open descriptors, and nothing else.

    `memory_bytes`: address space that it may use beside what it has now. All modules must have been
    imported, and threads can be started no more. Raises SealError if the kernel has no seccomp.
    Landlock is a second layer, which older kernels lack.
    """
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_AS, used + memory_bytes)
    seccomp.forbid_new_privileges()
    landlock.deny_all()
    for which in _NONE:
        _limit(which, 0)
    seccomp.install()
    _check_sealed()


def limit_cpu_time(seconds: int) -> None:
    """End this process after `seconds` of CPU time from now on, unless it is called again."""
    used = int(time.process_time()) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, hard))


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (value, value))


def _check_sealed() -> None:
    """Try what must fail now, in case the kernel accepts a filter and does not apply it."""
    try:
        os.stat("/")
    except PermissionError:
        return
    raise SealError("seccomp: the filter has no effect")
