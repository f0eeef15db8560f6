"""Preallocates the files in which API processes share metrics (prometheus-client's multiprocess
mode).

The library creates sparse files and maps them into memory, so on a full disk the first write to a
page kills the process with SIGBUS. Files that already exist with allocated blocks avoid this.
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
    "gauge_max": 64 * 1024,
}
"""File kind -> size in bytes: several times the size needed for all combinations of route and
status. The library extends a file that is too small, and the added part is not allocated."""
_USED: Final = struct.Struct("i")


def reserve_metrics_files(folder: Path, pid: int) -> None:
    """Create and allocate the metrics files of process `pid`. If the disk is full, remove them and
    raise OSError."""
    created = []
    try:
        for kind, size_bytes in SIZES.items():
            part = folder / f"{kind}_{pid}.part"  # readers ignore this suffix
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
    """Truncate the metrics files of an ended process to the length that it used."""
    for kind in SIZES:
        path = folder / f"{kind}_{pid}.db"
        with contextlib.suppress(OSError, struct.error), path.open("r+b") as file:
            (used,) = _USED.unpack(file.read(_USED.size))
            file.truncate(max(used, _USED.size))
