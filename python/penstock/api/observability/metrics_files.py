"""Preallocates the files in which API processes share metrics (prometheus-client's multiprocess
mode).

The library creates sparse files and maps them into memory: if the disk is full, the first write to
a page kills the process with SIGBUS. Files that already exist with allocated blocks avoid that.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Final

SIZES: Final = {
    "histogram": 2 * 1024 * 1024,
    "counter": 256 * 1024,
    "gauge_livesum": 256 * 1024,
}
"""File kind -> bytes: several times the size needed by every route with every status. The library
extends a file that is too small, with a hole."""
_USED: Final = struct.Struct("i")


def reserve_metrics_files(folder: Path, pid: int) -> None:
    """Create the files of a process. Raises OSError, after removing them, if the disk is full."""
    created = []
    try:
        for kind, size_bytes in SIZES.items():
            part = folder / f"{kind}_{pid}.part"  # a name that readers ignore
            created.append(part)
            with part.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
    except OSError:
        for part in created:
            part.unlink(missing_ok=True)
        raise
    for part in created:
        part.rename(part.with_suffix(".db"))


def trim_metrics_files(folder: Path, pid: int) -> None:
    """Cut the files of a process that has ended to the length that it used."""
    for kind in SIZES:
        path = folder / f"{kind}_{pid}.db"
        with contextlib.suppress(OSError, struct.error), path.open("r+b") as file:
            (used,) = _USED.unpack(file.read(_USED.size))
            file.truncate(max(used, _USED.size))
