"""Finds the processes that use a port or the files of a folder, by reading /proc."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
LISTENING: Final = "0A"
TABLES: Final = ("net/tcp", "net/tcp6")
SEARCHED_PORTS: Final = 100


@dataclass(frozen=True, slots=True)
class Process:
    """A running process. `command`: its command line without the folders of the program and of its
    first argument, or its name if it has no command line."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class PortOwner:
    """The owner of a listening port. `process`: None if it belongs to another user, whose files
    this process may not read. `user`: the name or number of the user."""

    user: str
    process: Process | None

    def __str__(self) -> str:
        if self.process is None:
            return f"a process of the user {self.user}"
        return f"process {self.process.pid} ({self.process.command})"


def port_owner(port: int, proc: Path = PROC) -> PortOwner | None:
    """Return the owner of the TCP port that some process of this machine listens on; None if none
    is found. `proc`: a folder like /proc."""
    for table in TABLES:
        for line in _lines(proc / table)[1:]:
            cells = line.split()
            if cells[3] == LISTENING and int(cells[1].rpartition(":")[2], 16) == port:
                return PortOwner(_user(int(cells[7])), _holder(f"socket:[{cells[9]}]", proc))
    return None


def free_port_after(port: int, host: str) -> int:
    """Return the next free port after `port`; 0, which means any, if the next 100 are in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port + 1, min(port + SEARCHED_PORTS, 65535) + 1):
        with socket.socket(family) as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, candidate))
            return candidate
    return 0


def file_users(folder: Path, proc: Path = PROC) -> list[Process]:
    """Return the processes that have `folder`, or a file or folder in it, open or mapped, except
    this one. Processes of other users are not found. `proc`: a folder like /proc."""
    # The name of an open folder has no slash at its end; a line of `maps` ends with the name.
    inside = f"{folder.resolve()}/"
    return [
        _process(path)
        for path in _processes(proc)
        if int(path.name) != os.getpid()
        and any(inside in f"{place}/" for place in _open_files(path))
    ]


def _open_files(process: Path) -> Iterator[str]:
    yield from _lines(process / "maps")
    yield from _descriptors(process)


def _descriptors(process: Path) -> Iterator[str]:
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):  # closed since
                yield os.readlink(descriptor)


def _holder(target: str, proc: Path) -> Process | None:
    """Return the process that has `target` open."""
    found = (path for path in _processes(proc) if target in _descriptors(path))
    holder = next(found, None)
    return None if holder is None else _process(holder)


def _processes(proc: Path) -> list[Path]:
    return sorted(
        (path for path in proc.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )


def _process(path: Path) -> Process:
    words = [word for word in "".join(_lines(path / "cmdline")).split("\0") if word]
    programs = [word.rpartition("/")[2] for word in words[:2]]
    command = " ".join([*programs, *words[2:]]) or "".join(_lines(path / "comm"))
    return Process(int(path.name), command if len(command) <= 60 else f"{command[:57]}...")


def main_process(process: Process, program: str, proc: Path = PROC) -> Process:
    """Return the process that started `process`, directly or not, and that also has `program` in
    its command line; `process` itself if there is none. Killing it ends both."""
    for line in _lines(proc / str(process.pid) / "status"):
        name, _, number = line.partition(":")
        if name == "PPid":
            parent = _process(proc / number.strip())
            return main_process(parent, program, proc) if program in parent.command else process
    return process


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
