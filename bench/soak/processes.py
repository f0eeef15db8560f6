"""The processes of a server: the role of each, and its resources."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from pathlib import Path
from typing import Final

from bench.harness.machine_facts import tree

ROLES: Final = {
    b"penstock.engine.processes.process": "engine",
    b"penstock.api.serving.worker": "worker",
    b"penstock.grammar.trial_process": "trial",
    b"penstock.cli.main": "parent",
}
LISTENING: Final = "0A"


def roles(parent: int) -> dict[int, str]:
    """Return the role of each process of a server."""
    found = {pid: _role(pid) for pid in tree(parent)}
    return {pid: role for pid, role in found.items() if role}


def _role(pid: int) -> str:
    """Return the role of a process; "" if it has ended, or was forked but has not executed yet."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((ROLES[word] for word in command if word in ROLES), "")


def most(of: dict[int, str], entry: str) -> dict[str, int]:
    """Return the most entries that a folder of /proc/PID, `fd` or `task`, has in one process of
    each role."""
    found: Counter[str] = Counter()
    for pid, role in of.items():
        with contextlib.suppress(OSError):  # the process has ended
            found[role] = max(found[role], len(os.listdir(f"/proc/{pid}/{entry}")))
    return dict(found)


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0


def is_alive(pid: int) -> bool:
    """Return whether a process with this id exists and belongs to a server."""
    return bool(_role(pid))


def num_listeners(port: int) -> int:
    """Return the number of sockets of this machine that listen on a port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(f[1].endswith(f":{port:04X}") and f[3] == LISTENING for f in fields)
