"""Several models in one server: selection, loading, unloading, cards."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted_answers import CHAT, HELLO

from penstock.config import ServerSettings
from penstock.engine.processes.fleet import ModelState
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, ScriptedLoop, serving, spoken


def loops(*names):
    return {name: ScriptedLoop(spoken(f"I am {name}")) for name in names}


async def asked(server, model=None):
    body = HELLO if model is None else HELLO | {"model": model}
    return await server.http.post(CHAT, json=body)


async def said(server, model=None):
    answer = await asked(server, model)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


async def test_request_reaches_the_model_that_it_names():
    async with serving(models=loops("a", "b"), aliases={"bee": "b"}) as server:
        assert [await said(server, name) for name in ("a", "b", "bee")] == [
            "I am a",
            "I am b",
            "I am b",
        ]
        answer = (await asked(server, "bee")).json()
        assert answer["model"] == "bee"  # the alias is echoed
        assert (await asked(server, "c")).status_code == 404


@pytest.mark.parametrize(("default", "meant"), [(None, "a"), ("b", "b")])
async def test_default_is_the_configured_model_else_the_first(default, meant):
    async with serving(models=loops("a", "b"), default=default) as server:
        assert await said(server) == await said(server, "default") == f"I am {meant}"
        assert (await asked(server, "default")).json()["model"] == meant


async def test_only_loaded_model_is_the_default_unless_one_is_configured():
    models = loops("a", "b")
    async with serving(models=models, on_demand=["a"]) as server:
        assert await said(server) == "I am b"
    async with serving(models=models, on_demand=["a"], default="a") as server:
        assert await said(server) == "I am a"


async def test_unloaded_model_is_refused_until_an_operator_reloads_it():
    async with serving(models=loops("a", "b")) as server:
        body = {"model_id": "a"}
        answer = await server.http.post("/v1/models/unload", json=body)
        assert answer.json() == {"model_id": "a", "status": "unloaded"}
        refused = await asked(server, "a")
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "model_unloaded"
        assert await said(server, "b") == "I am b"
        status = await server.http.post("/v1/models/status", json=body)
        assert status.json() == {"model_id": "a", "status": "unloaded"}
        answer = await server.http.post("/v1/models/reload", json=body)
        assert answer.json() == {"model_id": "a", "status": "loaded"}
        assert await said(server, "a") == "I am a"


async def test_request_waiting_for_a_load_fails_if_the_operator_unloads():
    async with serving(models=loops("a", "b"), on_demand=["b"]) as server:
        server.control.gate.clear()
        model = server.services.models["b"]
        opening = asyncio.get_running_loop().create_future()  # its engine loads slowly
        model._open_model = lambda: opening
        loading = asyncio.create_task(server.control.load("b"))
        await server.until(lambda: model.status == "reloading")
        waiting = asyncio.create_task(asked(server, "b"))
        await server.until(lambda: model._opened.leases == 1)
        await server.control.unload("b")
        refused = await waiting
        server.control.gate.set()
        await loading
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "model_unloaded"


async def test_requests_for_a_model_on_demand_share_one_load():
    async with serving(models=loops("a", "b"), on_demand=["b"]) as server:
        server.control.gate.clear()
        waiting = [asyncio.create_task(said(server, "b")) for _ in range(5)]
        await server.until(lambda: server.services.models["b"].status == "reloading")
        assert await said(server, "a") == "I am a"  # no other request waits
        server.control.gate.set()
        assert await asyncio.gather(*waiting) == ["I am b"] * 5


async def test_model_on_demand_is_loaded_again_after_it_was_unloaded():
    async with serving(models=loops("a"), on_demand=["a"]) as server:
        assert await said(server, "a") == "I am a"
        await server.http.post("/v1/models/unload", json={"model_id": "a"})
        assert await said(server, "a") == "I am a"
        assert server.control.loads == ["a", "a"]


async def test_stream_is_kept_alive_while_its_model_is_loaded():
    assert "I am a" in "".join(await streamed_while_loading(failing=False))


async def test_failed_load_ends_an_open_stream_with_an_error():
    lines = await streamed_while_loading(failing=True)
    assert "model_load_failed" in "".join(lines) and "/dev/mem" not in "".join(lines)


async def streamed_while_loading(*, failing):
    """Return the lines of a stream after its first keep-alive."""
    settings = ServerSettings(keep_alive_interval_ms=5)
    async with serving(models=loops("a"), on_demand=["a"], settings=settings) as server:
        server.control.gate.clear()
        server.control.failing = failing
        async with server.http.stream("POST", CHAT, json=HELLO | {"stream": True}) as answer:
            lines = answer.aiter_lines()
            assert answer.status_code == 200 and (await anext(lines)).startswith(":")
            server.control.gate.set()
            return [line async for line in lines]


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_during_a_load_leaves_nothing_behind(stream):
    body = json.dumps(HELLO | {"stream": stream}).encode()
    async with serving(models=loops("a"), on_demand=["a"]) as server:
        server.control.gate.clear()
        port = int(server.url.split(":")[-1])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % (CHAT.encode(), len(body)) + body)
        await server.until(lambda: server.control.loads == ["a"])
        writer.transport.abort()
        await server.until(lambda: not server.server.server_state.tasks)


@pytest.mark.parametrize("stream", [False, True])
async def test_failed_load_is_503_and_its_reason_is_only_logged(stream):
    async with serving(models=loops("a"), on_demand=["a"]) as server:
        server.control.failing = True
        answer = await server.http.post(CHAT, json=HELLO | {"stream": stream})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_load_failed"
        status = await server.http.post("/v1/models/status", json={"model_id": "a"})
        assert status.json()["status"] == "unloaded" and "log" in status.json()["error"]
        assert "/dev/mem" not in answer.text + status.text


async def test_running_request_keeps_its_model_until_it_has_finished():
    gate = asyncio.Event()

    def script(request):
        steps = list(spoken("whole")(request))
        yield from steps[:3]
        yield gate
        yield from steps[3:]

    async with serving(script) as server:
        model = server.services.models[MODEL]
        running = asyncio.create_task(said(server))
        await server.until(lambda: server.loop.running == 1)
        opened = model._opened
        await server.http.post("/v1/models/unload", json={"model_id": MODEL})
        assert opened._closing is None and (await asked(server)).status_code == 503
        gate.set()
        assert await running == "whole"
        await server.until(lambda: opened._closing is not None)


@pytest.mark.parametrize("route", ["unload", "reload", "status"])
async def test_model_operations_name_the_wrong_field(route):
    async with serving(models=loops("a")) as server:
        url = f"/v1/models/{route}"
        unknown = await server.http.post(url, json={"model_id": "x", "extra": 1})
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "model_id")
        assert unknown.json()["error"]["code"] == "model_not_found"
        for body in (b"{}", b"[]", b'{"model_id": 3}'):
            assert (await server.http.post(url, content=body)).status_code == 400


async def test_cards_have_the_status_of_each_model():
    async with serving(models=loops("a", "b"), on_demand=["b"], default="b") as server:
        cards = (await server.http.get("/v1/models")).json()["data"]
        assert [(card["id"], card["status"]) for card in cards] == [
            ("default", "unloaded"),
            ("a", "loaded"),
            ("b", "unloaded"),
        ]
        assert [card["architecture"] is None for card in cards] == [True, False, True]
        server.services.models.apply({"b": ModelState("reloading")})
        card = (await server.http.get("/v1/models/b")).json()
        assert card["status"] == "reloading" and card["object"] == "model"
        assert (await server.http.get("/v1/models/c")).status_code == 404


async def test_engine_metrics_are_the_sum_over_the_models():
    engine = ScriptedEngine([1])
    async with serving(models=loops("a", "b", "c"), on_demand=["c"]) as server:
        text = (await server.http.get("/metrics")).text
    capacity = 2 * engine.info.max_num_seqs
    assert f"service_sequences_capacity {float(capacity)}" in text
    assert "service_engine_up 1.0" in text
