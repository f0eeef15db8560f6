"""Stored responses: kept, continued, referenced, deleted."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from penstock.agent.attachments import Attachments
from penstock.base.errors import Unavailable
from penstock.dialog import (
    GenerateRequest,
    PartStarted,
    Reasoning,
    RunEnded,
    RunStarted,
    Text,
    TextDelta,
    ToolCall,
    ToolResult,
)
from penstock.fetch import AllowList, Fetcher
from penstock.store import Store
from tests.support.servers.http_server import CREATED, MODEL, USAGE, ScriptedLoop, spoken
from tests.support.servers.responses_server import (
    FUNCTION,
    URL,
    a_store,
    answering,
    create,
    get,
    stream,
    thinking_and_calling,
)
from tests.support.stores import MovableClock, opened, store_settings

pytestmark = pytest.mark.usefixtures("each_database")

UNKNOWN = "resp_" + "0" * 32


async def test_a_response_can_be_fetched_as_it_was_answered():
    async with answering() as server:
        body = await create(server)
        assert await get(server, body["id"]) == body


async def test_store_false_keeps_nothing():
    async with answering() as server:
        body = await create(server, store=False)
        assert body["store"] is False
        await get(server, body["id"], 404)
        error = (await create(server, 404, previous_response_id=body["id"]))["error"]
        events = await stream(server, store=False)
        await get(server, events[-1]["response"]["id"], 404)
    assert (error["code"], error["param"]) == ("response_not_found", "previous_response_id")


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
async def test_unknown_ids_are_404(method):
    path = f"{URL}/{UNKNOWN}" + ("/cancel" if method == "POST" else "")
    async with answering() as server:
        answer = await server.http.request(method, path)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"Response with ID '{UNKNOWN}' not found"


async def test_a_deleted_response_is_gone():
    async with answering() as server:
        id = (await create(server))["id"]
        answer = await server.http.delete(f"{URL}/{id}")
        assert answer.json() == {"id": id, "object": "response.deleted", "deleted": True}
        await get(server, id, 404)
        assert (await server.http.delete(f"{URL}/{id}")).status_code == 404
        await create(server, 404, previous_response_id=id)


async def test_a_streamed_response_can_be_fetched_while_it_runs():
    gate = asyncio.Event()

    def script(request):
        yield RunStarted(request.model or "", CREATED, 3)
        yield PartStarted(0, 0, "text")
        yield gate
        yield RunEnded("completed", USAGE)

    async with answering(script) as server:
        body = {"input": "hi", "stream": True}
        async with server.http.stream("POST", URL, json=body) as answer:
            id = ""
            async for line in answer.aiter_lines():
                if not id and "resp_" in line:
                    id = "resp_" + line.split("resp_")[1][:32]
                    running = await get(server, id)
                    gate.set()
        assert (running["status"], running["output"]) == ("in_progress", [])
        assert (await get(server, id))["status"] == "completed"


async def test_the_stream_of_a_client_that_leaves_is_cancelled_and_keeps_what_was_made():
    gate = asyncio.Event()

    def script(request):
        yield RunStarted(request.model or "", CREATED, 3)
        yield PartStarted(0, 0, "text")
        yield TextDelta(0, 0, "Hel")
        yield gate

    async with answering(script) as server:
        body = {"input": "hi", "stream": True}
        async with server.http.stream("POST", URL, json=body) as answer:
            id = ""
            async for line in answer.aiter_lines():
                if not id and "resp_" in line:
                    id = "resp_" + line.split("resp_")[1][:32]
                if "Hel" in line:
                    break
        await server.until(lambda: server.loop.cut_short == 1)
        while (stored := await get(server, id))["status"] == "in_progress":
            await asyncio.sleep(0.001)
    assert (stored["status"], stored["output_text"]) == ("cancelled", "Hel")
    assert stored["output"][0]["status"] == "incomplete"


async def test_a_server_that_stops_at_once_fails_its_stored_streams():
    gate = asyncio.Event()

    def script(request):
        yield RunStarted(request.model or "", CREATED, 3)
        yield PartStarted(0, 0, "text")
        yield TextDelta(0, 0, "Hel")
        yield gate

    async with a_store() as store:
        async with answering(script, store=store) as server:
            body = {"input": "hi", "stream": True}
            async with server.http.stream("POST", URL, json=body) as answer:
                lines = answer.aiter_lines()
                line = await anext(lines)
                while "resp_" not in line:
                    line = await anext(lines)
                server.server.stop()
                server.server.stop()
                await server.until(lambda: server.loop.cut_short == 1)
        stored = await store.responses.get("resp_" + line.split("resp_")[1][:32])
    assert stored is not None and stored.status == "failed"


async def test_a_client_that_leaves_before_the_answer_ends_its_run():
    gate = asyncio.Event()
    async with answering(lambda request: [gate]) as server:
        asking = asyncio.create_task(server.http.post(URL, json={"input": "hi"}))
        await server.until(lambda: server.loop.running == 1)
        asking.cancel()
        await server.until(lambda: server.loop.cut_short == 1)


async def test_a_chain_carries_calls_and_goes_on_with_their_results():
    async with answering(thinking_and_calling) as server:
        first = await create(server, tools=[FUNCTION])
        result = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
        await create(server, input=[result], previous_response_id=first["id"], tools=[FUNCTION])
    messages = server.loop.requests[1].messages
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    call = ToolCall("call_1", "weather", '{"city":"Graz"}')
    assert messages[1].parts == (Reasoning("hm"), Text("I look."), call)
    assert messages[2].parts == (ToolResult("call_1", "rain", "weather"),)


async def test_output_items_can_be_sent_back_as_input():
    async with answering(thinking_and_calling) as server:
        first = await create(server, tools=[FUNCTION], store=False)
        result = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
        items = [{"role": "user", "content": "hi"}, *first["output"], result]
        await create(server, input=items, tools=[FUNCTION])
    messages = server.loop.requests[1].messages
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    assert [type(part) for part in messages[1].parts] == [Reasoning, Text, ToolCall]


async def test_references_stand_for_stored_items():
    async with answering(thinking_and_calling) as server:
        first = await create(server, tools=[FUNCTION])
        items = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        await create(server, input=[*items, {"role": "user", "content": "and?"}])
        unknown = [{"type": "item_reference", "id": "msg_" + "0" * 36}]
        error = (await create(server, 404, input=unknown))["error"]
    assert server.loop.requests[1].messages[0].parts[:2] == (Reasoning("hm"), Text("I look."))
    assert error["code"] == "item_not_found"


async def test_a_chain_survives_a_restart(tmp_path: Path):
    settings, clock = store_settings(tmp_path), MovableClock()
    ids: list[str] = []
    for turn in range(3):
        async with opened(settings, clock) as store, answering(store=store) as server:
            previous = {"previous_response_id": ids[-1]} if ids else {}
            ids.append((await create(server, input=str(turn), **previous))["id"])
            told = server.loop.requests[0].messages
    assert [message.parts[0].text for message in told] == ["0", "Hello!", "1", "Hello!", "2"]


async def test_two_turns_may_go_on_from_one():
    async with answering() as server:
        first = await create(server)
        for text in ("a", "b"):
            await create(server, input=text, previous_response_id=first["id"])
    for request, text in zip(server.loop.requests[1:], "ab", strict=True):
        assert [m.parts[0].text for m in request.messages] == ["hi", "Hello!", text]


async def test_a_deleted_response_does_not_break_the_chain_after_it():
    async with answering() as server:
        first = await create(server)
        second = await create(server, previous_response_id=first["id"])
        await server.http.delete(f"{URL}/{first['id']}")
        await create(server, previous_response_id=second["id"])
    assert len(server.loop.requests[2].messages) == 5


async def test_a_response_expires_with_the_store():
    clock = MovableClock(CREATED)
    async with a_store(clock) as store, answering(store=store) as server:
        id = (await create(server))["id"]
        clock.now += 31 * 24 * 3600
        await get(server, id, 404)


async def test_an_answer_that_cannot_be_stored_is_an_error(monkeypatch):
    async with a_store() as store, answering(spoken("a"), store=store) as server:

        async def full(_response):
            raise Unavailable("the storage is full", code="storage_unavailable")

        monkeypatch.setattr(store.responses, "create", full)
        for fields in ({}, {"stream": True}, {"background": True}):
            error = (await create(server, 503, **fields))["error"]
            assert error["code"] == "storage_unavailable"
        await create(server, store=False)


async def test_a_stream_whose_end_cannot_be_stored_fails(monkeypatch):
    async with a_store() as store, answering(spoken("a"), store=store) as server:
        update = store.responses.update
        failures = [Unavailable("locked"), Unavailable("locked")]

        async def once_locked(*args, **fields):
            if failures:
                raise failures.pop()
            return await update(*args, **fields)

        monkeypatch.setattr(store.responses, "update", once_locked)
        monkeypatch.setattr("penstock.api.responses.response_runs.RETRY_INTERVAL_S", 0.001)
        events = await stream(server)
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        id = events[0]["response"]["id"]
        while (stored := await get(server, id))["status"] == "in_progress":
            await asyncio.sleep(0.001)
        assert stored["status"] == "failed"


class AttachingLoop(ScriptedLoop):
    """Attaches files as the real loop does."""

    def __init__(self, store: Store) -> None:
        super().__init__(spoken("Hello!"))
        self._attachments = Attachments(store.files, Fetcher(AllowList(())))

    async def attach(self, request: GenerateRequest) -> GenerateRequest:
        return await self._attachments.attach(request)


async def test_a_chain_carries_files_for_longer_than_they_are_kept():
    clock = MovableClock(CREATED)
    async with a_store(clock) as store:
        loop = AttachingLoop(store)
        async with answering(store=store, models={MODEL: loop}) as server:
            data = base64.b64encode(b"rivers: Ob, Mur").decode()
            part = {"type": "input_file", "filename": "a.txt", "file_data": data}
            first = await create(server, input=[{"role": "user", "content": [part]}])
            clock.now += 3600  # the files have been deleted
            await create(server, input="and?", previous_response_id=first["id"])
            gone = {"type": "input_file", "file_id": "file-" + "0" * 32}
            error = await create(server, 404, input=[{"role": "user", "content": [gone]}])
    for request in loop.requests:
        (text,) = request.messages[0].parts
        assert "rivers: Ob, Mur" in text.text and data not in text.text
    assert error["error"]["code"] == "file_not_found"
