"""Aliases, private copies and the engine together: the state after a load, a replacement and an
unload, and after failures in between."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.registry import LoadedAdapter
from penstock.adapters.storage import AdapterStorage
from penstock.base.errors import EngineFault, Unavailable
from penstock.config import LoraSettings
from penstock.dialog import Sampling
from penstock.engine.adapters.catalog import AdapterCatalog, AdapterLoadRequest
from penstock.engine.types import AdapterSource, AdapterState, TokenRequest
from tests.support.checkpoints.lora_adapters import write_adapter
from tests.support.scripted_engine import ScriptedEngine


class Place:
    """A catalog, its engine and the changes that it reported."""

    def __init__(self, folder: Path, **limits: int) -> None:
        self.home = folder / "home"
        self.engine = ScriptedEngine([1, 2, 3])
        self.heard: list[dict[str, str]] = []
        settings = LoraSettings(**limits)
        self.catalog = AdapterCatalog(settings, self.home, root=folder, changed=self.changed)
        self.catalog.attach(self.engine)
        self.folder = folder
        self.folders = [str(write_adapter(folder / f"a{n}", seed=n)) for n in range(4)]

    def changed(self) -> None:
        self.heard.append({a.alias: a.revision for a in self.catalog.adapters})

    async def load(self, alias: str, number: int, **policy: object) -> LoadedAdapter:
        return await self.catalog.load(AdapterLoadRequest(alias, self.folders[number], **policy))  # type: ignore

    async def known(self) -> dict[str, bool]:
        """Return the engine's revisions, and whether each is retired."""
        return {state.revision: state.retired for state in await self.engine.adapters()}

    def kept(self) -> set[str]:
        """Return the revisions with files on disk, and unfinished copies."""
        return {path.name for path in self.home.glob("adapters/run-*/*")} - {"lock"}

    def told_pins(self, *, refused: bool = False) -> list[bool]:
        """Whether each source that the engine gets from now on is pinned; it may refuse
        those that are."""
        pins: list[bool] = []
        add = self.engine.add_adapter

        async def note(source: AdapterSource) -> AdapterState:
            pins.append(source.pinned)
            if source.pinned and refused:
                raise AdapterRefused("lora_byte_limit_exceeded", "no room")
            return await add(source)

        self.engine.add_adapter = note  # type: ignore[method-assign]
        return pins

    async def refusal(self, awaitable: object) -> str:
        with pytest.raises(AdapterRefused) as refused:
            await awaitable  # type: ignore
        return refused.value.code


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path, max_adapters=3)
    yield made
    await made.catalog.close()
    assert list((tmp_path / "home").rglob("*")) in ([], [tmp_path / "home" / "adapters"])


def asking(revision: str, name: str = "one") -> TokenRequest:
    return TokenRequest(name, (1, 2), Sampling(), 0, 50, adapter=revision)


async def test_load_switches_the_alias_when_the_engine_has_it(place: Place) -> None:
    place.engine.load_gate.clear()
    loading = asyncio.create_task(place.load("style", 0, pinned=True))
    while not place.kept() - {"new"}:
        await asyncio.sleep(0)
    assert place.catalog.adapters == () and place.heard == []
    place.engine.load_gate.set()
    adapter = await loading
    assert (adapter.alias, adapter.rank, adapter.source) == ("style", 4, place.folders[0])
    assert adapter.pinned and place.heard == [{"style": adapter.revision}]
    assert await place.known() == {adapter.revision: False}
    (source,) = place.catalog.sources()
    assert source.revision == adapter.revision and Path(source.folder).is_dir()


async def test_what_is_loaded_no_longer_depends_on_its_source(place: Place) -> None:
    adapter = await place.load("style", 0)
    shutil.rmtree(place.folders[0])
    place.engine._adapters.clear()
    await place.engine.add_adapter(place.catalog.sources()[0])
    assert await place.known() == {adapter.revision: False}


async def test_replaced_generation_goes_with_its_last_sequence(place: Place) -> None:
    first = await place.load("style", 0)
    running = place.engine.generate(asking(first.revision))
    await anext(running)
    second = await place.load("style", 1, replace=True, expected=first.revision)
    assert place.heard[-1] == {"style": second.revision}
    assert await place.known() == {first.revision: True, second.revision: False}
    assert place.kept() == {first.revision, second.revision}
    await running.aclose()
    await place.catalog.settle()
    assert place.kept() == {second.revision} == set(await place.known())


async def test_unload_frees_what_nobody_uses(place: Place) -> None:
    adapter = await place.load("style", 0)
    await place.load("copy", 0)
    assert await place.catalog.unload("style") == adapter
    assert place.kept() == {adapter.revision} and place.heard[-1] == {"copy": adapter.revision}
    await place.catalog.unload("copy", adapter.revision)
    assert place.kept() == set() and await place.known() == {} and place.catalog.sources() == ()
    assert await place.refusal(place.catalog.unload("copy")) == "lora_adapter_not_found"


async def test_generation_is_pinned_as_long_as_one_of_its_aliases_is(place: Place) -> None:
    told = place.told_pins()
    await place.load("kept", 0, pinned=True)
    await place.load("copy", 0)
    assert told == [True, True]
    await place.catalog.unload("copy")
    await place.load("copy", 0)
    (source,) = place.catalog.sources()
    assert told == [True, True, True] and source.pinned
    await place.catalog.unload("kept")
    (source,) = place.catalog.sources()
    assert told == [True, True, True, False] and not source.pinned
    await place.load("copy", 0, replace=True, pinned=True)
    await place.load("copy", 0, replace=True)
    assert told[4:] == [True, True, False]


async def test_pin_that_is_refused_leaves_the_generation_as_it_was(place: Place) -> None:
    await place.load("style", 0)
    told = place.told_pins(refused=True)
    assert await place.refusal(place.load("kept", 0, pinned=True)) == "lora_byte_limit_exceeded"
    (source,) = place.catalog.sources()
    assert told == [True, False] and not source.pinned


async def test_load_goes_on_when_its_caller_leaves(place: Place) -> None:
    place.engine.load_gate.clear()
    loading = asyncio.create_task(place.load("style", 0))
    await asyncio.sleep(0)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert await place.refusal(place.load("other", 1)) == "lora_load_busy"
    place.engine.load_gate.set()
    while not place.heard:
        await asyncio.sleep(0)
    assert [adapter.alias for adapter in place.catalog.adapters] == ["style"]


async def test_failed_load_leaves_all_as_it_was(place: Place) -> None:
    first = await place.load("style", 0)
    wrong = write_adapter(place.folder / "wrong", rank=300)
    order = AdapterLoadRequest("style", str(wrong), replace=True)
    assert await place.refusal(place.catalog.load(order)) == "lora_rank_limit_exceeded"
    assert await place.refusal(place.load("b", 1, expected="x")) == "invalid_lora_load_policy"
    outside = AdapterLoadRequest("b", "/", rooted=True)
    assert await place.refusal(place.catalog.load(outside)) == "adapter_path_forbidden"
    await place.catalog.settle()
    assert place.catalog.adapters == (first,) and len(place.heard) == 1
    assert place.kept() == {first.revision} == set(await place.known())


async def test_operators_own_adapters_may_lie_anywhere(place: Place, tmp_path_factory) -> None:
    elsewhere = write_adapter(tmp_path_factory.mktemp("elsewhere") / "a")
    assert await place.refusal(place.catalog.load(AdapterLoadRequest("x", str(elsewhere))))
    assert await place.catalog.load(AdapterLoadRequest("x", str(elsewhere), rooted=False))


async def test_engine_that_dies_under_a_load_is_told_so(place: Place, monkeypatch) -> None:
    first = await place.load("style", 0)

    async def dies(source: object) -> None:
        raise EngineFault("the engine stopped")

    monkeypatch.setattr(place.engine, "add_adapter", dies)
    assert await place.refusal(place.load("b", 1)) == "lora_load_task_failed"
    assert [source.revision for source in place.catalog.sources()] == [first.revision]

    async def is_away(*_: object) -> None:
        raise Unavailable("the engine is starting")

    for name in ("add_adapter", "retire_adapter", "adapters"):
        monkeypatch.setattr(place.engine, name, is_away)
    assert await place.refusal(place.load("b", 1)) == "lora_device_load_failed"
    await place.catalog.unload("style")
    monkeypatch.undo()
    await place.catalog.settle()
    assert place.kept() == set() and await place.known() == {}


async def test_model_that_is_not_loaded_takes_no_adapter_but_keeps_its_own(place: Place) -> None:
    first = await place.load("style", 0)
    second = await place.load("b", 1)
    place.catalog.detach()
    assert await place.refusal(place.load("c", 2)) == "model_state_conflict"
    await place.catalog.unload("b")
    assert [source.revision for source in place.catalog.sources()] == [first.revision]
    assert place.kept() == {first.revision, second.revision}
    place.engine = ScriptedEngine([])
    place.catalog.attach(place.engine)
    await place.catalog.settle()
    assert place.kept() == {first.revision}


async def test_retired_generations_in_use_are_bounded(place: Place) -> None:
    running = []
    for number in (0, 1, 2, 3, 0, 1):
        folder = write_adapter(place.folder / f"r{len(running)}", seed=10 + len(running))
        adapter = await place.catalog.load(AdapterLoadRequest("style", str(folder), replace=True))
        running.append(
            place.engine.generate(asking(adapter.revision, str(number) + str(len(running))))
        )
        await anext(running[-1])
    assert (
        await place.refusal(place.load("style", 0, replace=True)) == "lora_adapter_limit_exceeded"
    )
    assert len(place.kept()) == 6
    await running[0].aclose()
    await place.load("style", 0, replace=True)
    for one in running:
        await one.aclose()
    await place.catalog.settle()
    assert len(place.kept()) == 1


async def test_same_content_again_revives_a_retired_generation(place: Place) -> None:
    first = await place.load("style", 0)
    running = place.engine.generate(asking(first.revision))
    await anext(running)
    await place.catalog.unload("style")
    again = await place.load("style", 0)
    assert again.revision == first.revision
    await running.aclose()
    await place.catalog.settle()
    assert await place.known() == {first.revision: False} and place.kept() == {first.revision}


async def test_unload_goes_on_when_its_caller_leaves(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [await place.load(alias, number) for number, alias in enumerate("ab")]
    running = [place.engine.generate(asking(one.revision, one.alias)) for one in used]
    for stream, one in zip(running, used, strict=True):
        await anext(stream)
        await place.catalog.unload(one.alias)
    last = await place.load("last", 2)
    for stream in running:
        await stream.aclose()
    assert place.kept() == {last.revision, *(one.revision for one in used)}
    began, may_end = threading.Event(), threading.Event()
    drop = AdapterStorage.drop

    def held(storage: AdapterStorage, revision: str) -> None:
        began.set()
        may_end.wait()
        drop(storage, revision)

    monkeypatch.setattr(AdapterStorage, "drop", held)
    unloading = asyncio.create_task(place.catalog.unload("last"))
    await asyncio.to_thread(began.wait)
    unloading.cancel()
    await asyncio.wait([unloading])
    may_end.set()
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    assert unloading.cancelled() and place.kept() == set()


async def test_home_that_cannot_be_written_refuses_loads_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    place = Place(tmp_path)
    assert await place.refusal(place.load("style", 0)) == "lora_storage_unavailable"
    (tmp_path / "home").unlink()
    assert await place.load("style", 0)
    await place.catalog.close()


async def test_copies_go_where_no_further_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    await place.load("style", 0)
    monkeypatch.setattr(asyncio, "to_thread", start_nothing)  # as when the interpreter exits
    await place.catalog.close()
    assert list((tmp_path / "home" / "adapters").iterdir()) == []


async def start_nothing(*_: object) -> None:
    raise RuntimeError("cannot schedule new futures after interpreter shutdown")
