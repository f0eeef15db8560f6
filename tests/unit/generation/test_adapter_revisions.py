"""Requests that name an adapter: which revision they get, and what they are refused with."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_generator import run

from penstock.adapters.registry import LoadedAdapter
from penstock.adapters.view import AdapterView
from penstock.base.errors import InvalidRequest
from penstock.dialog import AdapterRevision, GenerateRequest, RunEnded, RunStarted
from penstock.engine.types import AdapterSource
from penstock.generation import Generator
from tests.support.checkpoints.lora_adapters import write_adapter
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine

OLD, NEW = "1" * 64, "2" * 64


def named(alias: str, revision: str) -> LoadedAdapter:
    return LoadedAdapter(alias, revision, 4, 1, "/")


class World:
    """An engine with the revision OLD, which the alias `style` names."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(write_adapter(folder / "a"))
        self.engine = ScriptedEngine([5, 6])
        self.live = AdapterView(self.refresh)
        self.live.apply((named("style", OLD),))
        self.unheard: tuple[LoadedAdapter, ...] | None = None
        self.generator = Generator(
            self.engine, tiny_tokenizer(), tiny_template(), adapters=self.live
        )

    async def refresh(self) -> None:
        if self.unheard is not None:
            self.live.apply(self.unheard)

    async def has(self, *revisions: str) -> None:
        self.engine._adapters.clear()
        for revision in revisions:
            await self.engine.add_adapter(AdapterSource(revision, self.folder))

    async def run(self, adapter: str | AdapterRevision | None, **fields: object) -> str | None:
        """The revision that the run says it uses, once it is over."""
        request = GenerateRequest(prompt="hi", adapter=adapter, **fields)  # type: ignore[arg-type]
        events = [event async for event in run(self.generator, request)]
        assert isinstance(events[0], RunStarted) and isinstance(events[-1], RunEnded)
        assert sum(isinstance(event, RunStarted) for event in events) == 1
        used = {request.adapter for request in self.engine.requests}
        assert used == {events[0].adapter_revision or ""}
        return events[0].adapter_revision

    async def refusal(self, adapter: str | AdapterRevision) -> tuple[str, str | None]:
        with pytest.raises(InvalidRequest) as refused:
            await self.run(adapter)
        return refused.value.code, refused.value.field


@pytest.fixture
async def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    await made.has(OLD)
    return made


@pytest.mark.parametrize("n", [1, 3])
async def test_alias_selects_its_revision(world: World, n: int) -> None:
    assert await world.run("style", n=n) == OLD
    assert len(world.engine.requests) == n


async def test_request_without_adapter_uses_the_base_model(world: World) -> None:
    assert await world.run(None) is None


async def test_exact_revision_can_be_requested(world: World) -> None:
    world.live.apply(())
    assert await world.run(AdapterRevision(OLD)) == OLD
    unknown = await world.refusal(AdapterRevision(NEW))
    assert unknown == ("adapter_not_found", "adapter.generation")


async def test_unknown_alias_is_refused(world: World) -> None:
    assert await world.refusal("other") == ("adapter_not_found", "adapter")
    assert world.engine.requests == []


async def test_model_without_lora_runtime_refuses_adapters(world: World) -> None:
    world.live.apply(None)
    assert await world.refusal("style") == ("lora_runtime_unavailable", "adapter")
    revision = await world.refusal(AdapterRevision(OLD))
    assert revision == ("lora_runtime_unavailable", "adapter.generation")


@pytest.mark.parametrize("n", [1, 3])
async def test_alias_replaced_before_admission_uses_its_new_revision(world: World, n: int) -> None:
    await world.has(NEW)
    world.unheard = (named("style", NEW),)
    assert await world.run("style", n=n) == NEW


async def test_alias_removed_before_admission_is_refused(world: World) -> None:
    await world.has()
    world.unheard = ()
    assert await world.refusal("style") == ("adapter_not_found", "adapter")


async def test_revision_that_the_engine_lost_is_refused(world: World) -> None:
    await world.has()
    assert await world.refusal("style") == ("adapter_not_found", "adapter")
