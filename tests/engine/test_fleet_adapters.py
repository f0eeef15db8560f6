"""Adapters of real engine processes: they outlive the engine, and go with the server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import ModelError, ServiceError
from penstock.config import EngineSettings, Environment, LoraSettings, LoraSource
from penstock.dialog import Sampling
from penstock.engine.adapters.catalog import AdapterLoadRequest
from penstock.engine.ipc.client import EngineClient
from penstock.engine.processes.fleet import EngineFleet
from penstock.engine.types import TokenRequest
from tests.support.checkpoints.lora_adapters import write_adapter
from tests.support.checkpoints.small_llama import write_small_llama

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_llama(tmp_path_factory.mktemp("model") / "small-llama"))


@asynccontextmanager
async def fleet_of(home: Path, base: str, lora: LoraSettings | None) -> AsyncIterator[EngineFleet]:
    settings = EngineSettings(model=base, max_num_seqs=4, threads=1, lora=lora)
    fleet = EngineFleet({"a": settings}, Environment(home, home))
    try:
        yield fleet
    finally:
        await fleet.stop()


async def answer(client: EngineClient, revision: str, tokens: int = 12) -> list[int]:
    request = TokenRequest(
        os.urandom(8).hex(), (1, 2, 3), Sampling(temperature=0.0), 0, tokens, adapter=revision
    )
    return [token.token_id async for chunk in client.generate(request) for token in chunk.tokens]


async def revision_of(fleet: EngineFleet, alias: str, folder: Path, **policy: bool) -> str:
    return (
        await fleet.load_adapter("a", AdapterLoadRequest(alias, str(folder), **policy))
    ).revision


async def test_adapters_survive_the_death_of_the_engine_and_a_reload(
    base: str, tmp_path: Path
) -> None:
    async with fleet_of(tmp_path, base, LoraSettings()) as fleet:
        heard: list[list[str]] = []
        fleet.watch(lambda s: heard.append([a.alias for a in s["a"].adapters or ()]))
        await fleet.load("a")
        client = EngineClient(fleet.socket_path("a"))
        await client.wait_ready()
        style = await revision_of(fleet, "style", write_adapter(tmp_path / "s", seed=1))
        gone = await revision_of(fleet, "gone", write_adapter(tmp_path / "g", seed=2))
        assert heard[-1] == ["style", "gone"]
        plain, styled = await answer(client, ""), await answer(client, style)
        assert plain != styled
        pid = fleet._engines["a"].supervisor.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await fleet.unload_adapter("a", "gone", None)
        while client.serving:
            await asyncio.sleep(0.01)
        await client.wait_ready()  # the first request finds the adapters there
        assert await answer(client, style) == styled and await answer(client, "") == plain
        with pytest.raises(ServiceError) as refused:
            await answer(client, gone)
        assert refused.value.code == "adapter_not_found"
        unloading = asyncio.create_task(fleet.unload("a"))
        await asyncio.sleep(0)
        await client.close()
        await unloading
        with pytest.raises(AdapterRefused, match="not loaded"):
            await revision_of(fleet, "late", tmp_path / "s")
        await fleet.load("a")
        client = EngineClient(fleet.socket_path("a"))
        await client.wait_ready()
        assert await answer(client, style) == styled
        await client.close()
    assert not list((tmp_path / "adapters").iterdir())


async def test_engine_that_dies_under_a_load_loses_nothing_else(base: str, tmp_path: Path) -> None:
    async with fleet_of(tmp_path, base, LoraSettings()) as fleet:
        await fleet.load("a")
        style = await revision_of(fleet, "style", write_adapter(tmp_path / "s", seed=1))
        pid = fleet._engines["a"].supervisor.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        folder = write_adapter(tmp_path / "t", seed=2)
        loading = asyncio.create_task(
            fleet.load_adapter("a", AdapterLoadRequest("style", str(folder), replace=True))
        )
        while len(list(tmp_path.glob("adapters/run-*/*"))) < 3:  # the engine is asked right after
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(AdapterRefused) as refused:
            await loading
        assert refused.value.code in ("lora_load_task_failed", "lora_device_load_failed")
        (adapter,) = fleet.states["a"].adapters or ()
        assert adapter.revision == style
        client = EngineClient(fleet.socket_path("a"))
        await client.wait_ready()
        assert await answer(client, style)
        assert {state.revision for state in await client.adapters()} == {style}
        await client.close()


async def test_preloaded_adapters_are_there_with_the_model(base: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "s")
    lora = LoraSettings(preload=(LoraSource("style", str(folder), pinned=True),))
    async with fleet_of(tmp_path, base, lora) as fleet:
        await fleet.load("a")
        (adapter,) = fleet.states["a"].adapters or ()
        assert (adapter.alias, adapter.pinned) == ("style", True)
        await fleet.unload_adapter("a", "style", None)
        await fleet.unload("a")
        await fleet.load("a")  # what an operator unloaded does not come back
        assert fleet.states["a"].adapters == ()


async def test_preload_that_fails_is_told_by_its_alias(base: str, tmp_path: Path) -> None:
    lora = LoraSettings(preload=(LoraSource("style", str(tmp_path / "nothing")),))
    async with fleet_of(tmp_path, base, lora) as fleet:
        with pytest.raises(ModelError, match=r"lora style: .*' is neither a folder nor a hub id"):
            await fleet.load("a")
        assert fleet.states["a"].status == "unloaded"
        write_adapter(tmp_path / "nothing")
        await fleet.load("a")
        assert [a.alias for a in fleet.states["a"].adapters or ()] == ["style"]


async def test_model_without_runtime_refuses_adapters(base: str, tmp_path: Path) -> None:
    async with fleet_of(tmp_path, base, None) as fleet:
        assert fleet.states["a"].adapters is None
        with pytest.raises(AdapterRefused) as refused:
            await fleet.load_adapter("a", AdapterLoadRequest("x", "/"))
        assert refused.value.code == "lora_runtime_unavailable"
        assert not (tmp_path / "adapters").exists()
