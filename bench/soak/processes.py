"""The processes of a server: what each of them is, and what it holds."""

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
    """What each process of a server is."""
    found = {pid: _role(pid) for pid in tree(parent)}
    return {pid: role for pid, role in found.items() if role}


def _role(pid: int) -> str:
    """Empty for one that has ended, or that is none of ours yet: it was forked and not executed."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((ROLES[word] for word in command if word in ROLES), "")


def most(of: dict[int, str], entry: str) -> dict[str, int]:
    """How many entries a folder of /proc/PID has, `fd` or `task`: the most of one process of each
    role."""
    found: Counter[str] = Counter()
    for pid, role in of.items():
        with contextlib.suppress(OSError):  # it has ended
            found[role] = max(found[role], len(os.listdir(f"/proc/{pid}/{entry}")))
    return dict(found)


def rss_mib(pid: int) -> float:
    """Resident memory; 0 of a process that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0


def is_alive(pid: int) -> bool:
    """Whether there is still such a process of a server's."""
    return bool(_role(pid))


def num_listeners(port: int) -> int:
    """How many sockets of this machine listen on a port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(f[1].endswith(f":{port:04X}") and f[3] == LISTENING for f in fields)
