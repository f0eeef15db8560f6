"""The engines of several models: real processes, started, drained and planned together."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.base.errors import ModelError
from penstock.config import EngineSettings, Environment, LoraSettings
from penstock.dialog import Sampling
from penstock.engine.ipc.client import EngineClient
from penstock.engine.processes.fleet import EngineFleet
from penstock.engine.types import TokenRequest
from tests.support.checkpoints.small_llama import write_small_llama

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_llama(tmp_path_factory.mktemp("model") / "small-llama"))


@asynccontextmanager
async def fleet_of(
    environment: Environment | None = None, **models: EngineSettings
) -> AsyncIterator[EngineFleet]:
    fleet = EngineFleet(models, environment)
    try:
        yield fleet
    finally:
        await fleet.stop()


def small(model: str, **changes: object) -> EngineSettings:
    return EngineSettings(model=model, max_num_seqs=2, threads=1, **changes)  # type: ignore[arg-type]


async def generated(client: EngineClient, num_tokens: int) -> int:
    request = TokenRequest("one", (1, 2, 3), Sampling(temperature=0.0), 0, num_tokens)
    made = 0
    async for chunk in client.generate(request):
        made += len(chunk.tokens)
    return made


async def test_model_is_loaded_unloaded_and_loaded_again(small_llama: str) -> None:
    async with fleet_of(a=small(small_llama), b=small(small_llama)) as fleet:
        heard: list[str] = []
        fleet.watch(lambda states: heard.append(states["a"].status))
        await asyncio.gather(*(fleet.load("a") for _ in range(3)))
        assert heard == ["unloaded", "reloading", "loaded"]  # they shared one load
        assert "memory:" in fleet.report("a") and fleet.states["b"].status == "unloaded"
        client = EngineClient(fleet.socket_path("a"))
        await client.wait_ready()
        running = asyncio.create_task(generated(client, 100))
        await asyncio.sleep(0)
        unloading = asyncio.create_task(fleet.unload("a"))
        assert await running == 100
        assert not unloading.done() and heard[-1] == "unloaded"
        loading = asyncio.create_task(fleet.load("a"))  # waits for the end of the old engine
        await client.close()
        await unloading
        await loading
        assert heard[-2:] == ["reloading", "loaded"]
        client = EngineClient(fleet.socket_path("a"))
        await client.wait_ready()
        assert await generated(client, 5) == 5
        await client.close()


async def test_load_that_fails_says_why_and_may_be_tried_again(
    small_llama: str, tmp_path: Path
) -> None:
    later = tmp_path / "later"
    async with fleet_of(a=small(str(later))) as fleet:
        with pytest.raises(ModelError, match="later"):
            await fleet.load("a")
        state = fleet.states["a"]
        assert state.status == "unloaded" and state.failure is not None
        write_small_llama(later)
        await fleet.load("a")
        assert fleet.states["a"].status == "loaded"


async def test_load_that_the_system_refuses_a_process_fails_and_may_be_tried_again(
    small_llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with fleet_of(a=small(small_llama)) as fleet:
        with monkeypatch.context() as crowded:
            crowded.setattr(asyncio, "create_subprocess_exec", refused)
            with pytest.raises(ModelError, match="Too many open files"):
                await fleet.load("a")
        assert fleet.states["a"].status == "unloaded"
        await fleet.load("a")
        assert fleet.states["a"].status == "loaded"


async def test_load_whose_adapters_cannot_be_sent_fails_and_may_be_tried_again(
    small_llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    settings = small(small_llama, lora=LoraSettings())
    async with fleet_of(Environment(tmp_path, tmp_path), a=settings) as fleet:
        with monkeypatch.context() as crowded:
            crowded.setattr(fleet._engines["a"].adapters, "open", refused)
            with pytest.raises(ModelError, match="Too many open files"):
                await fleet.load("a")
        assert fleet.states["a"].status == "unloaded"
        assert fleet._engines["a"].supervisor.pid is None
        await fleet.load("a")
        assert fleet.states["a"].status == "loaded"


async def test_models_together_stay_within_the_memory_that_there_was(small_llama: str) -> None:
    async with fleet_of(
        a=small(small_llama, kv_cache_memory_mb=16), b=small(small_llama, kv_cache_memory_mb=64)
    ) as fleet:
        await fleet.load("a")
        info = fleet.info("a")
        assert info is not None
        mib = 1 << 20
        fleet._available_bytes = info.memory_bytes + 120 * mib  # 96 of them fixed
        with pytest.raises(ModelError, match="does not fit"):
            await fleet.load("b")
        await fleet.unload("a")
        await fleet.load("b")


async def test_stopping_ends_a_load_and_a_drain(small_llama: str) -> None:
    async with fleet_of(a=small(small_llama), b=small(small_llama)) as fleet:
        await fleet.load("a")
        client = EngineClient(fleet.socket_path("a"))
        await client.wait_ready()
        draining = asyncio.create_task(fleet.unload("a"))
        loading = asyncio.create_task(fleet.load("b"))
        await asyncio.sleep(0)
        await fleet.stop()
        for task in (draining, loading):
            with pytest.raises(asyncio.CancelledError):
                await task
        await client.close()
