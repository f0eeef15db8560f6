"""Containers of real sandboxes, and a check that a test leaves no part of them behind."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import psutil
import pytest
import pytest_asyncio

from penstock.config.settings import AgentSettings, SandboxSettings
from penstock.sandbox.container import Container
from penstock.sandbox.containers import Containers
from penstock.sandbox.python_facts import PythonFacts, query_python
from penstock.sandbox.types import PythonJob, PythonResult, ShellJob, ShellResult

RunPython = Callable[..., Coroutine[Any, Any, PythonResult]]
RunShell = Callable[..., Coroutine[Any, Any, ShellResult]]


def agent_settings(**changes: object) -> AgentSettings:
    """Settings with Python and shell, in a sandbox with little memory.

    The Python tool runs this Python, which has the packages whose results are tested.
    """
    values: dict[str, object] = {
        "enable_code_execution": True,
        "code_exec_python": sys.executable,
        "enable_shell": True,
        "sandbox": SandboxSettings(max_memory_mb=512),
    }
    return AgentSettings(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def facts() -> PythonFacts:
    """The facts about this Python, queried once: it takes a second to collect them."""
    return asyncio.run(query_python(sys.executable))


@pytest_asyncio.fixture
async def containers(facts: PythonFacts) -> AsyncIterator[Containers]:
    """Containers that end with the test. Afterwards no child process and no descriptor is left."""
    processes = {child.pid for child in psutil.Process().children(recursive=True)}
    running = Containers(agent_settings())
    running._facts = facts
    gc.collect()
    descriptors = set(os.listdir("/proc/self/fd"))
    yield running
    await running.close()
    gc.collect()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= processes
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors)


@pytest_asyncio.fixture
async def container(containers: Containers) -> Container:
    return await containers.container("session")


@pytest.fixture
def python(container: Container) -> RunPython:
    """Runs code in the container: `await python(code, timeout_s=...)`."""

    async def run(code: str, **options: object) -> PythonResult:
        return await container.run_python(PythonJob(code=code, **options))  # type: ignore[arg-type]

    return run


@pytest.fixture
def shell(container: Container) -> RunShell:
    """Runs commands in the container: `await shell("ls", timeout_s=...)`."""

    async def run(*commands: str, **options: object) -> ShellResult:
        job = ShellJob(commands=commands, **options)  # type: ignore[arg-type]
        return await container.run_shell(job)

    return run


async def until_made(container: Container, path: str, call: asyncio.Task[object]) -> None:
    """Return once a running call has made a file."""
    while not call.done():
        sandbox = container._sandbox
        if sandbox is not None and any(
            file.path == path for file in (await sandbox.list_files()).files
        ):
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"the call ended early: {call.result()}")
