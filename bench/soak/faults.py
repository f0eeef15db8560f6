"""Faults: processes are killed, suspended or terminated, and the store is locked or full."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bench.soak.server import SoakedServer

Fault = Callable[[SoakedServer, random.Random], Awaitable[None]]

MAX_SUSPENDED_S: Final = 6.0
LOCKED_S: Final = (1.0, 3.0, 14.0)
SMALL_DISK_BYTES: Final = 256 * 1024 * 1024
APPEAR_TIMEOUT_S: Final = 60.0


async def killed(server: SoakedServer, draw: random.Random, role: str) -> None:
    """Send SIGKILL; sometimes also to the successor, while it starts."""
    pid = _any(server, draw, role)
    if pid is None:
        return
    _send(pid, signal.SIGKILL)
    if role != "trial" and draw.random() < 0.3:
        with contextlib.suppress(asyncio.TimeoutError):
            before = set(server.pids(role))
            successor = await asyncio.wait_for(_another(server, role, before), APPEAR_TIMEOUT_S)
            await asyncio.sleep(2 * draw.random())
            _send(successor, signal.SIGKILL)


async def suspended(server: SoakedServer, draw: random.Random, role: str) -> None:
    """Send SIGSTOP, and SIGCONT some seconds later."""
    pid = _any(server, draw, role)
    if pid is None:
        return
    _send(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(draw.uniform(0.2, MAX_SUSPENDED_S))
    finally:
        _send(pid, signal.SIGCONT)


async def terminated(server: SoakedServer, draw: random.Random) -> None:
    """Send SIGTERM to all but the parent, as an operator might; they must continue."""
    for role in ("engine", "worker", "trial"):
        for pid in server.pids(role):
            _send(pid, signal.SIGTERM)


async def locked(server: SoakedServer, draw: random.Random) -> None:
    """Hold the database's write lock, sometimes for longer than writers wait."""
    # BEGIN fails if the database is locked already.
    with _opened(server) as other, contextlib.suppress(sqlite3.OperationalError):
        other.execute("BEGIN IMMEDIATE")
        await asyncio.sleep(draw.choice(LOCKED_S))
        other.execute("ROLLBACK")


async def full(server: SoakedServer, draw: random.Random) -> None:
    """Fill the store's disk, including the space that SQLite has reserved. Does nothing on a large
    disk."""
    disk = os.statvfs(server.store)
    if disk.f_blocks * disk.f_frsize > SMALL_DISK_BYTES:
        return
    filler = server.store / "filler"
    with _opened(server) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    try:
        _fill(filler)
        await asyncio.sleep(draw.uniform(0.5, MAX_SUSPENDED_S))
    finally:
        filler.unlink()


@contextlib.contextmanager
def _opened(server: SoakedServer) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(server.database, isolation_level=None)) as database:
        database.execute("PRAGMA busy_timeout=5000")
        yield database


def _fill(filler: Path) -> None:
    for size_bytes in (1 << 20, 1 << 12, 1):
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(b"\0" * size_bytes) == size_bytes:
                pass


def _any(server: SoakedServer, draw: random.Random, role: str) -> int | None:
    found = server.pids(role)
    return draw.choice(found) if found else None


async def _another(server: SoakedServer, role: str, before: set[int]) -> int:
    while not (found := set(server.pids(role)) - before):
        await asyncio.sleep(0.02)
    return found.pop()


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


FAULTS: Final[dict[str, tuple[int, Fault]]] = {
    "engine killed": (4, partial(killed, role="engine")),
    "worker killed": (4, partial(killed, role="worker")),
    "trial killed": (3, partial(killed, role="trial")),
    "engine held up": (2, partial(suspended, role="engine")),
    "worker held up": (2, partial(suspended, role="worker")),
    "trial held up": (2, partial(suspended, role="trial")),
    "parent held up": (2, partial(suspended, role="parent")),
    "all told to end": (2, terminated),
    "store locked": (2, locked),
    "store full": (2, full),
}
CUTTING: Final = "worker killed"
"""The fault that cuts connections."""
