"""`adapter` on `POST /v1/embeddings`, over real HTTP, a real engine and a small decoder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.adapters.registry import LoadedAdapter
from penstock.adapters.view import AdapterView
from penstock.agent import load_runners
from penstock.base.errors import InvalidRequest
from penstock.config import EngineSettings, LoraSettings
from penstock.dialog import AdapterRevision, EmbeddingRequest
from penstock.engine.adapters.catalog import AdapterCatalog, AdapterLoadRequest
from penstock.engine.local import LocalEngine
from penstock.models.hub.sources import files_at
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body
from tests.support.checkpoints.lora_adapters import ALL, write_adapter
from tests.support.servers.http_server import MODEL, Serving, serving

URL = "/v1/embeddings"
SIZES = {"head_dim": 16, "num_hidden_layers": 2, "vocab_size": 200}  # as in `lora_folders`


class World:
    """A server of an embedding model, whose adapters `catalog` loads."""

    def __init__(
        self, server: Serving, catalog: AdapterCatalog, engine: LocalEngine, root: Path
    ) -> None:
        self.server, self.catalog, self.engine = server, catalog, engine
        self.folders = [write_adapter(root / f"a{n}", seed=n, targets=ALL) for n in range(3)]

    async def load(self, alias: str, number: int, **order: Any) -> str:
        loaded = await self.catalog.load(
            AdapterLoadRequest(alias, str(self.folders[number]), **order)
        )
        return loaded.revision

    async def embedded(self, text: Any = "a b c", **fields: Any) -> tuple[Any, str | None]:
        """Return the vector, and the adapter revision that made it."""
        answer = await self.server.http.post(URL, json={"input": text, **fields})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["model"] == fields.get("model", MODEL)
        return [entry["embedding"] for entry in body["data"]], body.get("adapter_generation")

    async def refused(self, **fields: Any) -> tuple[str, str | None]:
        answer = await self.server.http.post(URL, json={"input": "a", **fields})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        return error["code"], error["param"]


@asynccontextmanager
async def world_of(
    folder: Path,
    tmp_path: Path,
    lora: LoraSettings | None = LoraSettings(),  # noqa: B008
) -> AsyncIterator[World]:
    engine = await LocalEngine.start(EngineSettings(model=str(folder), threads=2, lora=lora))
    live = AdapterView(limits=lora)
    told: list[Serving] = []
    catalog = AdapterCatalog(
        lora or LoraSettings(), tmp_path / "home", changed=lambda: told[0].control.tell_adapters()
    )
    catalog.attach(engine)
    try:
        runners = load_runners(files_at(folder, MODEL), engine, adapters=live)
        hosted = catalog if lora is not None else None
        async with serving(models={MODEL: runners}, adapters=live, catalog=hosted) as server:
            told.append(server)
            yield World(server, catalog, engine, tmp_path)
            await catalog.close()
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    body = small_body("Llama", **SIZES)
    return save_sentence_folder(tmp_path_factory.mktemp("llama"), body, "lasttoken")


@pytest.fixture
async def world(decoder: Path, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(decoder, tmp_path) as made:
        yield made


async def test_an_adapter_is_named_by_alias_generation_and_as_the_model(world: World) -> None:
    generation = await world.load("style", 0)
    plain, none = await world.embedded()
    styled, used = await world.embedded(adapter="style")
    assert none is None and used == generation
    assert styled != plain
    by_id = await world.embedded(adapter={"generation": generation})
    assert by_id == (styled, generation)
    assert await world.embedded(model="style") == (styled, generation)
    assert await world.embedded(model=f"{MODEL}::style") == (styled, generation)
    assert (await world.embedded(adapter=None)) == (plain, None)


async def test_requests_with_different_adapters_are_answered_as_each_alone(world: World) -> None:
    names = ["one", "two", None, "one", "two"]
    await world.load("one", 0)
    await world.load("two", 1)
    texts = ["a b c", "cat", "x y z a b c"]
    alone = {name: await world.embedded(texts, adapter=name) for name in set(names)}
    assert len({str(numbers) for numbers, _ in alone.values()}) == 3
    together = await asyncio.gather(*(world.embedded(texts, adapter=name) for name in names))
    assert together == [alone[name] for name in names]


async def test_a_replaced_alias_gives_its_new_generation(world: World) -> None:
    old = await world.load("style", 0)
    before = await world.embedded(adapter="style")
    new = await world.load("style", 1, replace=True)
    after = await world.embedded(adapter="style")
    assert (before[1], after[1]) == (old, new) and before[0] != after[0]
    await world.catalog.unload("style")
    assert await world.refused(adapter="style") == ("adapter_not_found", "adapter")


async def test_what_is_not_there_is_refused_by_its_name(world: World) -> None:
    await world.load("style", 0)
    assert await world.refused(adapter="other") == ("adapter_not_found", "adapter")
    missing = {"generation": "0" * 64}
    assert await world.refused(adapter=missing) == ("adapter_not_found", "adapter.generation")
    assert (await world.refused(adapter="style", model="style"))[1] == "adapter"
    assert (await world.refused(adapter=""))[1] == "adapter"


async def test_an_alias_that_is_switched_on_the_way_gives_its_new_generation(
    decoder: Path, world: World
) -> None:
    """The API process has not yet received the engine's change."""
    await world.load("style", 0)
    new = await world.load("style", 1, replace=True)
    stale = LoadedAdapter("style", "1" * 64, 4, 1, "/")
    live = AdapterView(lambda: _hear(live, world.catalog))
    live.apply((stale,))
    runners = load_runners(files_at(decoder, MODEL), world.engine, adapters=live)
    answer = await runners.must_embed().embed(EmbeddingRequest(("a b c",), adapter="style"))
    assert answer.adapter_revision == new
    live.apply((stale,))
    with pytest.raises(InvalidRequest) as refused:
        await runners.must_embed().embed(
            EmbeddingRequest(("a",), adapter=AdapterRevision("1" * 64))
        )
    assert refused.value.field == "adapter.generation"


async def _hear(live: AdapterView, catalog: AdapterCatalog) -> None:
    live.apply(catalog.adapters)


async def test_a_model_started_without_adapters_says_so(decoder: Path, tmp_path: Path) -> None:
    async with world_of(decoder, tmp_path, None) as world:
        assert await world.refused(adapter="style") == ("lora_runtime_unavailable", "adapter")


@pytest.mark.parametrize("lora", [None, LoraSettings()])
async def test_an_encoder_has_no_adapters(tmp_path: Path, lora: LoraSettings | None) -> None:
    folder = save_sentence_folder(tmp_path / "bert", small_body("Bert"))
    async with world_of(folder, tmp_path, lora) as world:
        assert await world.refused(adapter="style") == ("lora_runtime_unavailable", "adapter")
        named = {"generation": "0" * 64}
        where = ("lora_runtime_unavailable", "adapter.generation")
        assert await world.refused(adapter=named) == where
        assert (await world.embedded())[1] is None
