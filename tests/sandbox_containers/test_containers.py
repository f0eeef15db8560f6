"""Containers of a process: their number, their ends, and what is left of them."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.base.errors import Overloaded, Unavailable
from penstock.sandbox.container import Container
from penstock.sandbox.containers import Containers
from penstock.sandbox.types import InputFile, PythonJob, ShellJob
from tests.sandbox_containers.conftest import RunPython, agent_settings

ONE = PythonJob(code="1")


async def test_sessions_share_neither_variables_nor_files(containers: Containers) -> None:
    a, b = await containers.container("a"), await containers.container("b")
    await a.run_python(PythonJob(code="x = 1; open('file', 'w').close()"))
    done = await b.run_python(PythonJob(code="import os; 'x' in globals(), os.path.exists('file')"))
    assert done.result == "(False, False)"
    assert await containers.container("a") is a
    assert containers.running == 2


async def test_facts_about_python_name_its_version_and_packages(containers: Containers) -> None:
    facts = await containers.python_facts()
    container = await containers.container("a")
    done = await container.run_python(PythonJob(code="import sys; sys.version.split()[0]"))
    assert done.result == repr(facts.version)
    assert "pip" in facts.packages


async def test_layers_are_those_of_this_machine(containers: Containers) -> None:
    layers = await containers.layers()
    assert layers.namespaces or layers.missing


async def test_a_python_that_does_not_exist_is_unavailable() -> None:
    containers = Containers(agent_settings(code_exec_python="no-such-python"))
    with pytest.raises(Unavailable, match="code_exec_python"):
        await containers.python_facts()
    container = await containers.container("a")
    with pytest.raises(Unavailable, match="code_exec_python"):
        await container.run_python(ONE)
    await containers.close()


async def test_the_longest_idle_container_makes_room_and_its_loss_is_reported() -> None:
    containers = Containers(agent_settings(max_containers=2))
    try:
        for id in ("a", "b", "a", "c"):
            await (await containers.container(id)).run_python(PythonJob(code="x = 1"))
        assert containers.running == 2
        kept = await (await containers.container("a")).run_python(PythonJob(code="x"))
        assert (kept.result, kept.state_lost) == ("1", False)
        lost = await (await containers.container("b")).run_python(ONE)
        assert (lost.state_lost, lost.files_lost) == (True, True)
    finally:
        await containers.close()


async def test_if_all_containers_are_busy_a_further_one_is_refused() -> None:
    containers = Containers(agent_settings(max_containers=1))
    try:
        busy = await containers.container("a")
        await busy.run_python(ONE)
        call = asyncio.create_task(
            busy.run_python(PythonJob(code="import time; time.sleep(1000)", timeout_s=1000))
        )
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="busy"):
            await (await containers.container("b")).run_python(ONE)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await (await containers.container("b")).run_python(ONE)).result == "1"
    finally:
        await containers.close()


async def test_an_idle_container_ends() -> None:
    containers = Containers(agent_settings(session_idle_s=0))
    try:
        container = await containers.container("a")
        await container.run_python(ONE)
        while containers.running:
            await asyncio.sleep(0.01)
        again = await (await containers.container("a")).run_python(ONE)
        assert (again.result, again.state_lost) == ("1", True)
    finally:
        await containers.close()


async def test_the_death_of_a_container_in_a_call_is_reported_and_survived(
    container: Container, python: RunPython
) -> None:
    await container.put_files([InputFile("input", b"1")])
    generation = container.generation
    call = asyncio.create_task(python("import time; time.sleep(1000)", timeout_s=1000))
    await asyncio.sleep(0)
    assert container._sandbox is not None
    os.kill(container._sandbox._launcher.pid, signal.SIGKILL)
    died = await call
    assert (died.status, died.state_lost, died.files_lost) == ("error", True, True)
    assert container.generation != generation
    after = await python("import os; os.listdir()")
    assert (after.result, after.state_lost, after.files_lost) == ("['skills']", True, True)
    assert (await python("1")).files_lost is False


async def test_the_death_of_a_container_between_calls_is_survived(
    container: Container, python: RunPython
) -> None:
    await python("x = 1")
    assert container._sandbox is not None
    generation, sandbox = container.generation, container._sandbox
    os.kill(sandbox._launcher.pid, signal.SIGKILL)
    await sandbox.closed
    assert container.generation != generation
    done = await python("1")
    assert (done.result, done.files_lost) == ("1", True)


async def test_closing_a_container_ends_its_call(containers: Containers) -> None:
    container = await containers.container("a")
    call = asyncio.create_task(container.run_shell(ShellJob(commands=("sleep 1000",))))
    while not container.running:
        await asyncio.sleep(0.005)
    await containers.close_container("a")
    done = await call
    assert (done.status, containers.running) == ("error", 0)
    with pytest.raises(Unavailable):
        await container.run_python(ONE)


async def test_a_container_that_is_closed_while_it_starts_leaves_no_process(
    containers: Containers,
) -> None:
    container = await containers.container("a")
    call = asyncio.create_task(container.run_python(ONE))
    for _ in range(3):
        await asyncio.sleep(0)
    await containers.close()
    assert containers.running == 0
    with suppress(Unavailable):
        await call


async def test_closed_containers_start_nothing(containers: Containers) -> None:
    container = await containers.container("a")
    await containers.close()
    with pytest.raises(Unavailable):
        await container.run_python(ONE)


async def test_files_of_a_host_folder_outlive_the_container(tmp_path: Path) -> None:
    for code, result in [("open('a', 'w').write('kept')", "4"), ("open('a').read()", "'kept'")]:
        containers = Containers(agent_settings(code_exec_workdir=str(tmp_path)))
        done = await (await containers.container("../odd id")).run_python(PythonJob(code=code))
        await containers.close()
        assert done.result == result, done
    assert [path.parent for path in tmp_path.iterdir()] == [tmp_path]
