"""Real engine processes with tensor parallelism: a rank that dies ends its engine, and the
restarted engine has all adapters again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_fleet_adapters import answer, revision_of
from tp_runtimes import rank_processes, tensor_parallel_settings

from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import EngineFault
from penstock.config import Environment
from penstock.engine.adapters.catalog import AdapterLoadRequest
from penstock.engine.ipc.client import EngineClient
from penstock.engine.processes.fleet import EngineFleet
from tests.support.checkpoints.lora_adapters import write_adapter
from tests.support.checkpoints.small_llama import write_small_llama

pytestmark = pytest.mark.slow
ENGINE = Path(__file__).with_name("tp_engine.py")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_llama(tmp_path_factory.mktemp("model") / "small-llama"))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the temporary folders of engine processes, those of `tp_engine`, to one of the test."""
    own = asyncio.create_subprocess_exec

    def spawn(program: str, flag: str, module: str, *arguments: str, **options: Any) -> Any:
        assert (program, flag, module) == (
            sys.executable,
            "-m",
            "penstock.engine.processes.process",
        )
        return own(program, str(ENGINE), *arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@asynccontextmanager
async def fleet_of(home: Path, base: str) -> AsyncIterator[tuple[EngineFleet, EngineClient]]:
    settings = tensor_parallel_settings(model=base, cpu_kv_cache_memory_mb=0)
    fleet = EngineFleet({"a": settings}, Environment(home, home))
    try:
        await fleet.load("a")
        client = EngineClient(fleet.socket_path("a"))
        await client.wait_ready()
        yield fleet, client
        await client.close()
    finally:
        await fleet.stop()


def processes_of(fleet: EngineFleet) -> tuple[psutil.Process, psutil.Process]:
    """Return the engine process and its only other rank."""
    pid = fleet._engines["a"].supervisor.pid
    assert pid is not None
    (rank,) = rank_processes(pid)
    return psutil.Process(pid), rank


async def until(reached: Callable[[], bool]) -> None:
    while not reached():
        await asyncio.sleep(0.01)


async def test_adapters_survive_the_death_of_a_rank(
    base: str, tmp_path: Path, temporary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with fleet_of(tmp_path, base) as (fleet, client):
        style = await revision_of(fleet, "style", write_adapter(tmp_path / "s", seed=1))
        plain, styled = await answer(client, ""), await answer(client, style)
        assert plain != styled
        engine, rank = processes_of(fleet)
        going_on = asyncio.create_task(answer(client, style, 100))
        await asyncio.sleep(0)
        rank.kill()
        with pytest.raises(EngineFault):
            await going_on
        await until(lambda: not client.serving)
        await client.wait_ready()
        assert not engine.is_running()
        assert await answer(client, style) == styled and await answer(client, "") == plain
        assert {state.revision for state in await client.adapters()} == {style}
        assert len(list(temporary.glob("penstock-ranks-*"))) == 1
        _, rank = processes_of(fleet)
    assert "rank 1 (cpu) ended with status -9, and so does the engine" in capfd.readouterr().err
    assert not rank.is_running() and not list(temporary.iterdir())


async def test_a_rank_that_dies_during_a_load_loses_nothing_else(
    base: str, tmp_path: Path, temporary: Path
) -> None:
    async with fleet_of(tmp_path, base) as (fleet, client):
        style = await revision_of(fleet, "style", write_adapter(tmp_path / "s", seed=1))
        _, rank = processes_of(fleet)
        rank.suspend()
        folder = write_adapter(tmp_path / "t", seed=2)
        order = AdapterLoadRequest("style", str(folder), replace=True)
        loading = asyncio.create_task(fleet.load_adapter("a", order))
        await until(lambda: len(list(tmp_path.glob("adapters/run-*/*"))) == 3)
        rank.kill()
        with pytest.raises(AdapterRefused) as refused:
            await loading
        assert refused.value.code in ("lora_load_task_failed", "lora_device_load_failed")
        await until(lambda: not client.serving)
        await client.wait_ready()
        assert await answer(client, style)
        assert {state.revision for state in await client.adapters()} == {style}
