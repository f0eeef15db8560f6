"""Times and memory of calls in containers: the real sandbox, without server and model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from bench.agent.figures import Figure, Section, quantiles
from bench.harness.load_client import percentile
from bench.harness.machine_facts import tree
from penstock.config import AgentSettings
from penstock.sandbox.containers import Containers
from penstock.sandbox.types import PythonJob, ShellJob

SETTINGS = AgentSettings(
    enable_code_execution=True,
    enable_shell=True,
    shell_path="/bin/sh",
    code_exec_python=sys.executable,
    max_containers=1024,
)
WARM_CONTAINERS = 5
IDLE_SESSIONS = 8
SETTLE_S = 2.0


@contextlib.asynccontextmanager
async def containers() -> AsyncIterator[Containers]:
    """Yield containers whose facts about the machine are known, as in a server that has started."""
    made = Containers(SETTINGS)
    try:
        await made.layers()
        await made.python_facts()
        yield made
    finally:
        await made.close()


def launches(repeats: int) -> Section:
    """Measure the time from a new container's id to the output of its first call."""
    return asyncio.run(_launches(repeats))


async def _launches(repeats: int) -> Section:
    shell_ms, python_ms, bare_ms = [], [], []
    async with containers() as made:
        for number in range(repeats):
            began = time.perf_counter()
            container = await made.container(f"cntr_shell{number}")
            shell = await container.run_shell(ShellJob(commands=("/bin/echo 1",)))
            shell_ms.append(1e3 * (time.perf_counter() - began))
            assert shell.stdout == "1\n", shell
            began = time.perf_counter()
            container = await made.container(f"cntr_python{number}")
            python = await container.run_python(PythonJob(code="print(1)"))
            python_ms.append(1e3 * (time.perf_counter() - began))
            assert python.stdout == "1\n", python
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", "print(1)"], check=True, capture_output=True)
            bare_ms.append(1e3 * (time.perf_counter() - began))
            for id in (f"cntr_shell{number}", f"cntr_python{number}"):
                await made.close_container(id)
    p50, p99 = percentile(shell_ms, 0.5), percentile(shell_ms, 0.99)
    figures = (
        Figure("sandbox launch to the output of /bin/echo, p50", round(p50, 1), "ms", 40, 15),
        Figure("sandbox launch to the output of /bin/echo, p99", round(p99, 1), "ms", 100, 40),
    )
    details = {
        "shell_ms": quantiles(shell_ms),
        "python_ms": quantiles(python_ms),
        "bare_python_ms": quantiles(bare_ms),
    }
    return Section(figures, details)


def warm_calls(repeats: int) -> Section:
    """Measure a call of an interpreter that runs already: `x = 1` costs nothing itself."""
    return asyncio.run(_warm_calls(repeats))


async def _warm_calls(repeats: int) -> Section:
    taken_ms = []
    async with containers() as made:
        warm = [await made.container(f"cntr_{number}") for number in range(WARM_CONTAINERS)]
        for container in warm:
            await container.run_python(PythonJob(code="x = 0"))
        for number in range(repeats):
            container = warm[number % len(warm)]
            began = time.perf_counter()
            result = await container.run_python(PythonJob(code="x = 1"))
            taken_ms.append(1e3 * (time.perf_counter() - began))
            assert result.status == "success", result
    p50 = round(percentile(taken_ms, 0.5), 2)
    return Section(
        (Figure("warm Python call, overhead, p50", p50, "ms", 8, 3),),
        {"warm_ms": quantiles(taken_ms)},
    )


def idle_memory(sessions: int = IDLE_SESSIONS) -> Section:
    """Measure the memory of idle Python sessions beside as many bare interpreters."""
    return asyncio.run(_idle_memory(sessions))


async def _idle_memory(sessions: int) -> Section:
    bare = [_bare_python() for _ in range(sessions)]
    try:
        async with containers() as made:
            for number in range(sessions):
                container = await made.container(f"cntr_{number}")
                await container.run_python(PythonJob(code="x = 1"))
            await asyncio.sleep(SETTLE_S)
            known = {process.pid for process in bare}
            children = [pid for pid in tree(os.getpid())[1:] if pid not in known]
            bare_kib = sum(pss_kib(process.pid) for process in bare) / sessions
            session_kib = sum(map(pss_kib, children)) / sessions
            by_name: dict[str, float] = {}
            for pid in children:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                by_name[name] = by_name.get(name, 0) + round(pss_kib(pid) / sessions)
    finally:
        for process in bare:
            process.kill()
            process.wait()
    more = round((session_kib - bare_kib) / 1024, 2)
    details = {
        "sessions": sessions,
        "session_mib": round(session_kib / 1024, 2),
        "bare_python_mib": round(bare_kib / 1024, 2),
        "kib_by_program": by_name,
    }
    return Section(
        (Figure("idle Python session beside a bare python3, PSS", more, "MiB more", 4, 1),), details
    )


def _bare_python() -> subprocess.Popen[bytes]:
    """Start an interpreter that waits for input, as the one of a session does."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def pss_kib(pid: int) -> int:
    """Return the proportional set size of one process in KiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
