"""Runs programs in containers for tests, and containers as other users."""

from __future__ import annotations

import asyncio

# Imported now, since an ordinary user may not be able to read the library later.
import concurrent.futures.thread  # noqa: F401
import ctypes
import errno
import os
import shutil
import struct
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil

from penstock.config.settings import SandboxSettings
from penstock.sandbox.launcher import Sandbox, SandboxSpec
from penstock.sandbox.process import ExitStatus, SandboxProcess

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
PYTHON = shutil.which("python3", path=SYSTEM_PATH) or "/usr/bin/python3"
ENVIRONMENT = {"PATH": SYSTEM_PATH, "HOME": "/mnt/data", "LC_ALL": "C.UTF-8"}
ORDINARY_USER = 54321
CLONE_NEWUSER = 0x10000000
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
# The report of a scenario that ran to its end.
PASSED = "passed"


@dataclass(frozen=True)
class Finished:
    """The output of a program, and how it ended."""

    stdout: str
    stderr: str
    status: ExitStatus


@asynccontextmanager
async def launched(settings: SandboxSettings | None = None) -> AsyncIterator[Sandbox]:
    """A container that ends with the block."""
    sandbox = await Sandbox.launch(SandboxSpec(settings=settings or SandboxSettings(mode="on")))
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def finish(process: SandboxProcess) -> Finished:
    """Read all output of a program and wait for its end."""
    stdout, stderr = await asyncio.gather(process.stdout.read(), process.stderr.read())
    status = await process.wait()
    process.close()
    return Finished(stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"), status)


async def shell(sandbox: Sandbox, script: str) -> Finished:
    """Run a script with /bin/sh."""
    return await finish(await sandbox.spawn(["/bin/sh", "-c", script], ENVIRONMENT))


async def python(sandbox: Sandbox, code: str) -> Finished:
    """Run Python code in a new interpreter of the system."""
    return await finish(await sandbox.spawn([PYTHON, "-c", code], ENVIRONMENT))


async def started(sandbox: Sandbox, script: str) -> SandboxProcess:
    """Start a script; return when it has written its first line."""
    process = await sandbox.spawn(["/bin/sh", "-c", script], ENVIRONMENT)
    assert await process.stdout.readline() == b"started\n"
    return process


def host_processes(sandbox: Sandbox) -> list[psutil.Process]:
    """Return the processes of a container as the host sees them: launcher, init, programs."""
    launcher = psutil.Process(sandbox.launcher_pid)
    return [launcher, *launcher.children(recursive=True)]


async def all_gone(processes: list[psutil.Process]) -> None:
    """Return when none of the processes runs."""
    await asyncio.to_thread(lambda: [process.wait(30) for process in processes])


def run_as_ordinary_user(scenario: Callable[[], Awaitable[None]]) -> str:
    """Run a scenario in a child process without root's rights; return PASSED or its traceback."""

    def drop() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(ORDINARY_USER)
            os.setuid(ORDINARY_USER)

    return _in_child(drop, scenario)


def run_without_namespaces(scenario: Callable[[], Awaitable[None]], user: int) -> str:
    """Run a scenario where no user namespace can be made; return PASSED or its traceback.

    Needs root: the scenario runs in a user namespace that maps all users and allows no other one.
    """

    def forbid() -> None:
        with open("/proc/sys/user/max_user_namespaces", "w") as limit:
            limit.write("0")
        if user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)

    return _in_child(forbid, scenario, in_user_namespace=True)


def run_without_system_call(
    scenario: Callable[[], Awaitable[None]], number: int, argument: int | None = None
) -> str:
    """Run a scenario as if the kernel lacked a system call, or its form with this first argument.

    Returns PASSED or the scenario's traceback.
    """

    def refuse() -> None:
        # Load the number; skip if another. Load the first argument; skip if another. ENOSYS.
        code = [(0x20, 0, 0, 0), (0x15, 0, 1 if argument is None else 3, number)]
        if argument is not None:
            code += [(0x20, 0, 0, 16), (0x15, 0, 1, argument)]
        code += [(0x06, 0, 0, 0x00050000 | errno.ENOSYS), (0x06, 0, 0, 0x7FFF0000)]
        program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
        header = struct.pack("HxxxxxxP", len(code), ctypes.addressof(program))
        libc = ctypes.CDLL(None)
        assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        assert libc.prctl(PR_SET_SECCOMP, 2, header) == 0

    return _in_child(refuse, scenario)


def _in_child(
    prepare: Callable[[], None],
    scenario: Callable[[], Awaitable[None]],
    in_user_namespace: bool = False,
) -> str:
    read_end, write_end = os.pipe()
    ready_read, ready_write = os.pipe()
    mapped_read, mapped_write = os.pipe()
    child = os.fork()
    if child == 0:
        report = PASSED
        try:
            if in_user_namespace:
                assert ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0
                os.write(ready_write, b"x")
                os.read(mapped_read, 1)
                os.setuid(0)
            prepare()
            asyncio.run(_awaited(scenario))
        except BaseException:
            report = traceback.format_exc()
        finally:
            os.write(write_end, report.encode()[-60000:])
            os._exit(0)
    if in_user_namespace:
        os.read(ready_read, 1)
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{name}", "w") as mapping:
                mapping.write("0 0 4294967295")
        os.write(mapped_write, b"x")
    for end in (write_end, ready_read, ready_write, mapped_read, mapped_write):
        os.close(end)
    with os.fdopen(read_end) as report_file:
        report = report_file.read()
    os.waitpid(child, 0)
    return report


async def _awaited(scenario: Callable[[], Awaitable[None]]) -> None:
    await scenario()
