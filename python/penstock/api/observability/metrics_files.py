"""The files in which API processes share their metrics (prometheus-client's multiprocess mode).

The library makes them sparse and maps them: where the disk is full, the first write to a page ends
the process with SIGBUS. So they are there, with blocks of their own, before it looks for them.
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
"""Bytes by kind: several times what every route with every status takes. A file that has too little
is made longer by the library, sparse again."""
_USED: Final = struct.Struct("i")


def reserve_metrics_files(folder: Path, pid: int) -> None:
    """Make the files of a process. Raises OSError where there is no room for them; then there are
    none."""
    made = []
    try:
        for kind, size_bytes in SIZES.items():
            part = folder / f"{kind}_{pid}.part"  # none of those that are read
            made.append(part)
            with part.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
    except OSError:
        for part in made:
            part.unlink(missing_ok=True)
        raise
    for part in made:
        part.rename(part.with_suffix(".db"))


def trim_metrics_files(folder: Path, pid: int) -> None:
    """Of the files of a process that has ended, keep what it used."""
    for kind in SIZES:
        path = folder / f"{kind}_{pid}.db"
        with contextlib.suppress(OSError, struct.error), path.open("r+b") as file:
            (used,) = _USED.unpack(file.read(_USED.size))
            file.truncate(max(used, _USED.size))
