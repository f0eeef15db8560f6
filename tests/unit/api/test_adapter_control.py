"""What a worker asks its parent of adapters, over the lines between them."""

from __future__ import annotations

import asyncio

import pytest

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.registry import LoadedAdapter
from penstock.api.serving.model_control import (
    CommandReply,
    FromWorker,
    ModelStates,
    PipeControl,
    execute_command,
    from_worker_decoder,
    line_of,
    to_worker_decoder,
)
from penstock.base.errors import ServiceError
from penstock.config import EngineSettings, Environment, LoraSettings
from penstock.engine.adapters.catalog import AdapterLoadRequest
from penstock.engine.processes.fleet import EngineFleet, ModelState


class Pipe:
    """A worker's control, and its parent's fleet, whose model is not loaded."""

    def __init__(self, fleet: EngineFleet) -> None:
        self.fleet = fleet
        self.control = PipeControl(self.write)
        self.errands: set[asyncio.Task[None]] = set()

    def write(self, message: FromWorker) -> None:
        task = asyncio.create_task(self.carry(line_of(message)))
        self.errands.add(task)

    async def carry(self, line: bytes) -> None:
        answer = await execute_command(self.fleet, from_worker_decoder.decode(line))  # type: ignore[arg-type]
        heard = to_worker_decoder.decode(line_of(answer))
        assert isinstance(heard, CommandReply)
        self.control.answered(heard)


@pytest.fixture
async def pipe(tmp_path):
    settings = EngineSettings(model="none", lora=LoraSettings())
    fleet = EngineFleet(
        {"a": settings, "b": EngineSettings(model="none")}, Environment(tmp_path, tmp_path)
    )
    yield Pipe(fleet)
    await fleet.stop()


async def test_refusals_reach_the_worker_as_they_were(pipe):
    cases = [
        (pipe.control.load_adapter("a", AdapterLoadRequest("x", "/")), "model_state_conflict", 409),
        (pipe.control.load_adapter("a", AdapterLoadRequest(" ", "/")), "invalid_lora_name", 400),
        (
            pipe.control.load_adapter("b", AdapterLoadRequest("x", "/")),
            "lora_runtime_unavailable",
            409,
        ),
        (pipe.control.unload_adapter("a", "x", None), "lora_adapter_not_found", 404),
    ]
    for asked, code, status in cases:
        with pytest.raises(AdapterRefused) as refused:
            await asked
        assert (refused.value.code, refused.value.status) == (code, status)


async def test_second_load_is_told_when_to_come_back(pipe):
    pipe.fleet._engines["a"].adapters.catalog._registry.begin("other")
    with pytest.raises(AdapterRefused) as refused:
        await pipe.control.load_adapter("a", AdapterLoadRequest("x", "/"))
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)


async def test_worker_is_answered_whatever_goes_wrong(pipe, monkeypatch):
    async def broken(*_):
        raise RuntimeError("broken")

    for name in ("load", "unload", "load_adapter", "unload_adapter"):
        monkeypatch.setattr(pipe.fleet, name, broken)
    for asked, status in [
        (pipe.control.load("b"), 503),
        (pipe.control.load_adapter("a", AdapterLoadRequest("x", "/")), 500),
        (pipe.control.unload_adapter("a", "x", None), 500),
    ]:
        with pytest.raises(ServiceError) as failed:
            await asyncio.wait_for(asked, 5)
        assert failed.value.status == status and "broken" not in failed.value.message


async def test_news_are_waited_for(pipe):
    await pipe.control.sync()
    assert pipe.control._waiting == {}


def test_states_carry_the_adapters_of_each_model():
    adapter = LoadedAdapter("x", "0" * 64, 8, 100, "/x", pinned=True)
    states = {"a": ModelState("loaded", adapters=(adapter,)), "b": ModelState("loaded")}
    assert to_worker_decoder.decode(line_of(ModelStates(states))) == ModelStates(states)
