"""The adapter routes, and the use of adapters in every dialect."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.adapters.view import AdapterView
from penstock.agent import AgentLoop
from penstock.api.routes.request_reader import THREAD_BODY_BYTES
from penstock.config import LoraSettings, ServerSettings
from penstock.engine.adapters.catalog import AdapterCatalog, AdapterLoadRequest
from penstock.generation import Generator
from tests.support.checkpoints.lora_adapters import write_adapter
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, Serving, frames_of, serving

LOAD, UNLOAD, LIST = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/lora_adapters"
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": MESSAGES,
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": MESSAGES | {"max_tokens": 5},
}


class World:
    """A server with real adapters over a scripted engine."""

    def __init__(self, server: Serving, engine: ScriptedEngine, root: Path) -> None:
        self.server, self.engine, self.root = server, engine, root
        self.folders = [write_adapter(root / f"a{n}", seed=n) for n in range(3)]

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        return await self.server.http.post(path, json=fields)

    async def load(self, name: str, number: int = 0, **fields: Any) -> dict[str, Any]:
        folder = str(self.folders[number])
        answer = await self.post(LOAD, lora_name=name, lora_path=folder, **fields)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def listed(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.server.http.get(LIST)).json()
        return found


@asynccontextmanager
async def world_of(
    tmp_path: Path, *, updates: bool = True, settings: ServerSettings | None = None, **limits: int
) -> AsyncIterator[World]:
    root = tmp_path / "root"
    root.mkdir()
    engine = ScriptedEngine([5, 6, 7])
    engine.lora = LoraSettings(**limits)
    live = AdapterView(limits=engine.lora)
    loop = AgentLoop(Generator(engine, tiny_tokenizer(), tiny_template(), adapters=live))
    told: list[Serving] = []
    catalog = AdapterCatalog(
        engine.lora,
        tmp_path / "home",
        root=root,
        changed=lambda: told[0].control.tell_adapters(),
    )
    catalog.attach(engine)
    async with serving(
        models={MODEL: loop},
        engine=engine,
        adapters=live,
        catalog=catalog,
        adapter_updates=updates,
        settings=settings or ServerSettings(),
    ) as server:
        told.append(server)
        yield World(server, engine, root)
    await catalog.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path, max_adapters=2) as made:
        yield made


def refusal(answer: httpx.Response) -> tuple[int, str]:
    error = answer.json()["error"]
    assert set(error) >= {"code", "message", "type"} and "root/" not in error["message"]
    kind = "server_error" if answer.status_code >= 500 else "invalid_request_error"
    assert error["type"] == kind
    return answer.status_code, error["code"]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_large_bodies_are_decoded_in_threads(
    world: World, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()

    def loads(body: bytes) -> Any:
        threads.add(threading.current_thread())
        return orjson.loads(body)

    watched = SimpleNamespace(loads=loads, JSONDecodeError=orjson.JSONDecodeError)
    monkeypatch.setattr("penstock.api.codecs.request_fields.json_body.orjson", watched)
    await world.post(path, lora_name="x" * THREAD_BODY_BYTES)
    assert threads and threading.current_thread() not in threads


async def test_load_answers_with_the_fields_of_the_specification(world: World) -> None:
    adapter = await world.load(" sql ")
    generation = adapter["generation"]
    assert len(generation) == 64 and set(generation) <= set("0123456789abcdef")
    assert adapter == {
        "id": "sql",
        "object": "lora_adapter",
        "source": str(world.folders[0]),
        "generation": generation,
        "rank": 4,
        "bytes": adapter["bytes"],
    }
    assert adapter["bytes"] > 0


async def test_list_has_aliases_generations_and_limits(world: World) -> None:
    adapter = await world.load("sql")
    copy = await world.load("copy")
    assert copy["generation"] == adapter["generation"]
    assert await world.listed() == {
        "object": "list",
        "data": [adapter, copy],
        "generations": [
            {
                "generation": adapter["generation"],
                "aliases": ["sql", "copy"],
                "rank": 4,
                "bytes": adapter["bytes"],
                "retired": False,
                "active_leases": 0,
                "resident": True,
            }
        ],
        "resident_generations": 1,
        "retired_generations": 0,
        "resident_bytes": adapter["bytes"],
        "max_adapters": 2,
        "max_rank": 256,
        "max_bytes": 8 * 1024**3,
    }


async def test_empty_model_in_the_query_is_the_default_model(world: World) -> None:
    await world.load("sql")
    answer = await world.server.http.get(f"{LIST}?model=")
    assert answer.json() == await world.listed()


async def test_without_updates_only_a_redacted_list_is_served(
    tmp_path: Path,
) -> None:
    async with world_of(tmp_path, updates=False) as world:
        catalog = world.server.control.catalog
        assert catalog is not None
        await catalog.load(AdapterLoadRequest("sql", str(world.folders[0])))
        (shown,) = (await world.listed())["data"]
        assert "source" not in shown and str(tmp_path) not in json.dumps(await world.listed())
        for path in (LOAD, UNLOAD):
            answer = await world.server.http.post(path, json={})
            assert answer.status_code == 404
            assert "SERVICE_ALLOW_RUNTIME_LORA_UPDATING=1" in answer.json()["error"]["message"]


@pytest.mark.parametrize("field", ["load_inplace", "replace"])
async def test_alias_is_replaced_if_the_expected_generation_matches(
    world: World, field: str
) -> None:
    first = await world.load("sql")
    again = await world.post(LOAD, lora_name="sql", lora_path=str(world.folders[1]))
    assert refusal(again) == (409, "lora_adapter_already_loaded")
    second = await world.load("sql", 1, **{field: True})
    assert second["generation"] != first["generation"]
    stale = await world.post(
        LOAD,
        lora_name="sql",
        lora_path=str(world.folders[2]),
        load_inplace=True,
        expected_generation=first["generation"],
    )
    assert refusal(stale) == (409, "lora_generation_mismatch")
    third = await world.load("sql", 2, load_inplace=True, expected_generation=second["generation"])
    assert (await world.listed())["data"] == [third]


async def test_unload_returns_the_removed_adapter(world: World) -> None:
    adapter = await world.load("sql")
    stale = await world.post(UNLOAD, lora_name="sql", expected_generation="0" * 64)
    assert refusal(stale) == (409, "lora_generation_mismatch")
    gone = await world.post(UNLOAD, lora_name="sql", expected_generation=adapter["generation"])
    assert (gone.status_code, gone.json()) == (200, adapter)
    assert refusal(await world.post(UNLOAD, lora_name="sql")) == (404, "lora_adapter_not_found")
    assert (await world.listed())["generations"] == []
    ignored = await world.post(UNLOAD, lora_name="sql", lora_int_id={"any": 1})
    assert refusal(ignored) == (404, "lora_adapter_not_found")


async def test_running_requests_keep_their_generation(world: World) -> None:
    adapter = await world.load("sql")
    gate = asyncio.Event()
    world.engine._script = [5, gate, 6]
    body = MESSAGES | {"adapter": "sql", "stream": True}
    running = asyncio.create_task(world.server.http.post("/v1/chat/completions", json=body))
    await world.server.until(lambda: bool(world.engine.active))
    assert (await world.post(UNLOAD, lora_name="sql")).status_code == 200
    listed = await world.listed()
    (generation,) = listed["generations"]
    assert (generation["retired"], generation["active_leases"]) == (True, 1)
    assert (generation["aliases"], listed["retired_generations"]) == ([], 1)
    exact = {"adapter": {"generation": adapter["generation"]}, "max_tokens": 1}
    late = await world.server.http.post("/v1/completions", json={"prompt": "hi"} | exact)
    assert late.status_code == 200  # for as long as it is there
    gate.set()
    frames = frames_of((await running).text)
    chunks = [json.loads(frame) for frame in frames[:-1]]
    assert {chunk["adapter_generation"] for chunk in chunks} == {adapter["generation"]}
    assert (await world.listed())["generations"] == []
    gone = await world.server.http.post("/v1/completions", json={"prompt": "hi"} | exact)
    assert refusal(gone) == (400, "adapter_not_found")


async def test_unload_and_replacement_leave_32_streams_alone(world: World) -> None:
    first = (await world.load("sql"))["generation"]
    gate = asyncio.Event()
    world.engine._script = [5, gate, 6]
    body = {"prompt": "hi", "adapter": "sql", "stream": True}
    streams = [
        asyncio.create_task(world.server.http.post("/v1/completions", json=body)) for _ in range(32)
    ]
    await world.server.until(lambda: len(world.engine.active) == 32)
    second = (await world.load("sql", 1, load_inplace=True))["generation"]
    assert (await world.post(UNLOAD, lora_name="sql")).status_code == 200
    leases = {
        one["generation"]: one["active_leases"] for one in (await world.listed())["generations"]
    }
    assert leases == {first: 32} and second != first
    gate.set()
    for answer in await asyncio.gather(*streams):
        assert generation_in("/v1/completions", answer, True) == {first}
        assert "\\u0005" in answer.text and "\\u0006" in answer.text
    assert (await world.listed())["generations"] == []


async def test_load_continues_after_a_disconnect_and_excludes_other_loads(world: World) -> None:
    world.engine.load_gate.clear()
    body = {"lora_name": "sql", "lora_path": str(world.folders[0])}
    async with httpx.AsyncClient(base_url=world.server.url) as other:
        leaving = asyncio.create_task(other.post(LOAD, json=body))
        catalog = world.server.control.catalog
        assert catalog is not None
        await world.server.until(lambda: bool(catalog.sources()))
        leaving.cancel()
    busy = await world.post(LOAD, lora_name="b", lora_path=str(world.folders[1]))
    assert refusal(busy) == (429, "lora_load_busy")
    assert busy.headers["retry-after"] == "1"
    assert (await world.server.http.get("/health")).status_code == 200
    world.engine.load_gate.set()
    await world.server.until(lambda: bool(catalog.adapters))
    assert [one["id"] for one in (await world.listed())["data"]] == ["sql"]


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"lora_name": ""}, 400, "invalid_lora_name"),
        ({"lora_name": "x" * 257}, 400, "invalid_lora_name"),
        ({"lora_path": ""}, 400, "invalid_adapter_path"),
        ({"lora_path": "a\0"}, 400, "invalid_adapter_path"),
        ({"lora_path": "../home"}, 403, "adapter_path_forbidden"),
        ({"lora_path": "/etc"}, 403, "adapter_path_forbidden"),
        ({"lora_path": "nothing"}, 404, "adapter_path_not_found"),
        ({"lora_path": "."}, 404, "adapter_file_not_found"),
        ({"lora_path": "dora"}, 422, "invalid_lora_adapter"),
        ({"lora_path": "large"}, 409, "lora_rank_limit_exceeded"),
        ({"expected_generation": "0" * 64}, 400, "invalid_lora_load_policy"),
        ({"load_inplace": True, "expected_generation": "0"}, 409, "lora_generation_mismatch"),
        ({"model": "other"}, 404, "model_not_found"),
        ({"lora_name": None}, 422, "invalid_request_body"),
        ({"lora_name": 3}, 422, "invalid_request_body"),
        ({"lora_name": "x" * 4097}, 422, "invalid_request_body"),
        ({"lora_path": ["a"]}, 422, "invalid_request_body"),
        ({"lora_path": "x" * 4097}, 422, "invalid_request_body"),
        ({"expected_generation": "x" * 4097}, 422, "invalid_request_body"),
        ({"load_inplace": "yes"}, 422, "invalid_request_body"),
        ({"load_inplace": True, "replace": False}, 422, "invalid_request_body"),
        ({"surprise": 1}, 422, "invalid_request_body"),
        ({"is_3d_lora_weight": 1}, 422, "invalid_request_body"),
    ],
)
async def test_rejected_load_has_the_documented_status(
    world: World, fields: dict[str, Any], status: int, code: str
) -> None:
    write_adapter(world.root / "dora", config={"use_dora": True})
    write_adapter(world.root / "large", rank=300)
    body = {"lora_name": "sql", "lora_path": "a0"} | fields
    assert refusal(await world.post(LOAD, **body)) == (status, code)
    assert (await world.listed())["generations"] == []


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_adapter_bodies_are_validated_strictly(tmp_path: Path, path: str) -> None:
    settings = ServerSettings(body_limit_bytes=2048)
    async with world_of(tmp_path, settings=settings) as world:
        http, json_type = world.server.http, {"content-type": "application/json"}
        for body in (b"", b"{", b"[1]", b"\xff"):
            answer = await http.post(path, content=body, headers=json_type)
            assert refusal(answer) == (400, "malformed_json")
        for kind in ({}, {"content-type": "text/plain"}):
            answer = await http.post(path, content=b"{}", headers=kind)
            assert refusal(answer) == (415, "invalid_content_type")
        answer = await http.post(path, content=b"{}", headers=json_type)
        assert refusal(answer) == (422, "invalid_request_body")
        charset = {"content-type": "Application/JSON; charset=utf-8"}
        assert (await http.post(path, content=b"{}", headers=charset)).status_code == 422
        answer = await http.post(path, content=b" " * 4096, headers=json_type)
        assert refusal(answer) == (413, "request_body_too_large")
        assert refusal(await world.post(path, lora_name="x", other=1))[0] == 422


async def test_exceeded_capacity_is_reported(world: World) -> None:
    await world.load("a", 0)
    await world.load("b", 1)
    full = await world.post(LOAD, lora_name="c", lora_path=str(world.folders[2]))
    assert refusal(full) == (409, "lora_alias_limit_exceeded")
    await world.load("b", 2, load_inplace=True)


async def test_unloaded_model_rejects_adapters(world: World) -> None:
    assert world.server.control.catalog is not None
    world.server.control.catalog.detach()
    answer = await world.post(LOAD, lora_name="c", lora_path=str(world.folders[2]))
    assert refusal(answer) == (409, "model_state_conflict")


async def test_cards_of_adapters_come_after_those_of_models(world: World) -> None:
    adapter = await world.load("a:b%#c")
    cards = (await world.server.http.get("/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == ["default", MODEL, f"{MODEL}::a%3Ab%25%23c"]
    card = cards[-1]
    assert (card["root"], card["parent"], card["status"]) == ("a:b%#c", MODEL, "loaded")
    assert card["adapter_generation"] == adapter["generation"]
    assert all(other["adapter_generation"] is None for other in cards[:-1])
    quoted = card["id"].replace("%", "%25").replace("#", "%23")
    assert (await world.server.http.get(f"/v1/models/{quoted}")).json() == card


def generation_in(path: str, answer: httpx.Response, stream: bool) -> set[str | None]:
    if not stream:
        return {answer.json().get("adapter_generation")}
    events = [
        json.loads(line.removeprefix("data: "))
        for line in answer.text.splitlines()
        if line.startswith("data: {")
    ]
    if path == "/v1/messages":
        return {events[0]["message"].get("adapter_generation")}
    if path == "/v1/responses":
        return {e["response"].get("adapter_generation") for e in events if "response" in e}
    return {event.get("adapter_generation") for event in events}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", DIALECTS)
async def test_every_dialect_accepts_an_alias_a_generation_and_an_alias_as_model(
    world: World, path: str, stream: bool
) -> None:
    generation = (await world.load("sql"))["generation"]
    named: list[dict[str, Any]] = [
        {"adapter": "sql"},
        {"adapter": {"generation": generation}},
        {"model": "sql"},
        {"model": f"{MODEL}::sql"},
    ]
    for fields in named:
        answer = await world.server.http.post(
            path, json=DIALECTS[path] | fields | {"stream": stream}
        )
        assert answer.status_code == 200, answer.text
        assert generation_in(path, answer, stream) == {generation}
        assert world.engine.requests[-1].adapter == generation
        if not stream and path != "/v1/responses":
            assert answer.json()["model"] == fields.get("model", MODEL)
    plain = await world.server.http.post(path, json=DIALECTS[path] | {"stream": stream})
    assert generation_in(path, plain, stream) == {None}
    assert world.engine.requests[-1].adapter == ""


@pytest.mark.parametrize("path", DIALECTS)
async def test_unknown_adapter_is_rejected(world: World, path: str) -> None:
    await world.load("sql")
    for fields in ({"adapter": "other"}, {"adapter": {"generation": "0" * 64}}):
        answer = await world.server.http.post(path, json=DIALECTS[path] | fields)
        assert answer.status_code == 400
        if path != "/v1/messages":
            assert refusal(answer) == (400, "adapter_not_found")
    both = {"model": "sql", "adapter": "sql"}
    answer = await world.server.http.post(path, json=DIALECTS[path] | both)
    assert answer.status_code == 400 and "leave `adapter` out" in answer.text
    unknown = await world.server.http.post(path, json=DIALECTS[path] | {"model": "other"})
    assert unknown.status_code == 404
    assert world.engine.requests == []


async def test_embedding_with_an_adapter_is_rejected(world: World) -> None:
    await world.load("sql")
    for fields in ({"adapter": "sql"}, {"model": "sql"}):
        answer = await world.server.http.post("/v1/embeddings", json={"input": "x"} | fields)
        assert answer.status_code == 400


async def test_background_response_reports_its_generation(world: World) -> None:
    generation = (await world.load("sql"))["generation"]
    body = {"input": "hi", "adapter": "sql", "background": True}
    queued = (await world.server.http.post("/v1/responses", json=body)).json()
    path = f"/v1/responses/{queued['id']}"
    while (done := (await world.server.http.get(path)).json())["status"] != "completed":
        await asyncio.sleep(0.01)
    assert done["adapter_generation"] == generation


async def test_metrics_label_the_model_of_adapter_routes(world: World) -> None:
    await world.load("sql")
    await world.server.http.get(f"{LIST}?model={MODEL}")
    await world.server.http.get(f"{LIST}?model=other")
    await world.post(LOAD, lora_name="x", lora_path="y", model="other")
    await world.server.http.post(UNLOAD, content=b"{", headers={"content-type": "application/json"})
    await world.server.http.post("/v1/completions", json={"prompt": "hi", "model": "sql"})
    text = (await world.server.http.get("/metrics")).text
    (requests,) = (f for f in text_string_to_metric_families(text) if f.name == "http_requests")
    labels = {(s.labels["path"], s.labels["model"]) for s in requests.samples if s.value}
    assert labels == {
        (LOAD, MODEL),
        (LOAD, "unknown"),
        (UNLOAD, "unknown"),
        (LIST, MODEL),
        (LIST, "unknown"),
        ("/v1/completions", MODEL),
    }
