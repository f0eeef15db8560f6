"""`GET /v1/responses/{id}?stream=true`: the stream of a background response, read again."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from test_background_responses import Gated, orphan, two_processes, until_status

from penstock.base.errors import EngineFault, Unavailable
from penstock.dialog import PartEnded, RunEnded, Text, TextDelta, TurnEnded
from penstock.store.records import EventChunk
from tests.support.servers.http_server import USAGE, Serving
from tests.support.servers.responses_server import (
    FUNCTION,
    URL,
    a_store,
    answering,
    create,
    events_of,
    failing,
    get,
    parsed,
    stream,
    thinking_and_calling,
)
from tests.support.stores import MovableClock

pytestmark = pytest.mark.usefixtures("each_database")

STREAMED = {"background": True, "stream": True}


async def again(server: Serving, id: str, after: int | None = None) -> list[dict[str, Any]]:
    """Read the events of a stored stream again."""
    query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
    answer = await server.http.get(f"{URL}/{id}", params=query)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-s")
    return events_of(answer.text)


async def begun_id(server: Serving) -> str:
    """Return the id of the only running stream, once an event of it is stored."""
    await server.until(lambda: bool(server.services.runs._logs))
    (id,) = server.services.runs._detached
    return id


@pytest.mark.parametrize("script", [thinking_and_calling, failing(EngineFault("it broke"))])
async def test_a_stream_is_the_same_when_it_is_read_again(script):
    async with answering(script) as server:
        events = await stream(server, tools=[FUNCTION], **STREAMED)
        id = events[0]["response"]["id"]
        await get(server, id)
        assert await again(server, id) == events
        for after in range(len(events)):
            assert await again(server, id, after) == events[after + 1 :]


async def test_any_process_sends_what_comes_as_it_comes():
    script = Gated()
    script.start.set()
    async with two_processes(script) as (one, two, _):
        asking = asyncio.create_task(stream(one, **STREAMED))
        id = await begun_id(one)
        await until_status(two, id, "in_progress")
        text = ""
        async with two.http.stream("GET", f"{URL}/{id}?stream=true") as answer:
            async for piece in answer.aiter_text():
                text += piece
                if '"Hel"' in text:
                    script.finish.set()
        assert events_of(text) == await asking


async def test_a_client_that_broke_off_goes_on_where_it_was():
    script = Gated()
    script.start.set()
    async with answering(script) as server:
        text = ""
        body = {"input": "hi"} | STREAMED
        async with server.http.stream("POST", URL, json=body) as answer:
            async for piece in answer.aiter_text():
                text += piece
                if '"Hel"' in text:
                    break
        seen = parsed(text + "data: [DONE]\n\n")
        script.finish.set()
        rest = await again(server, seen[0]["response"]["id"], seen[-1]["sequence_number"])
    assert rest[-1]["response"]["output_text"] == "Hello"
    numbers = [event["sequence_number"] for event in seen + rest]
    assert numbers == list(range(len(numbers)))


async def test_a_reader_that_stops_reading_is_dropped():
    text = "x" * 1_000_000
    parts = [TextDelta(0, 0, text)] * 2
    ended = [PartEnded(0, 0, Text(text * 2)), TurnEnded(0, "stop", USAGE)]
    script = failing(*parts, *ended, RunEnded("completed", USAGE))
    async with answering(script) as server:
        id = (await stream(server, **STREAMED))[0]["response"]["id"]
        services = server.services
        hasty = msgspec.structs.replace(services.settings, stall_timeout_s=0.05)
        object.__setattr__(services, "settings", hasty)
        connections = server.server.server_state.connections
        before = set(connections)
        port = int(server.url.split(":")[-1])
        _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(
            b"GET %b/%b?stream=true HTTP/1.1\r\nhost: x\r\n\r\n" % (URL.encode(), id.encode())
        )
        await server.until(lambda: bool(connections - before))
        await server.until(lambda: not connections - before)
        writer.transport.abort()


async def test_a_store_that_fails_for_a_while_does_not_break_a_replay_off(monkeypatch):
    async with answering() as server:
        events = await stream(server, **STREAMED)
        id = events[0]["response"]["id"]
        await get(server, id)
        stored = server.services.store.response_events
        read, failures = stored.read, iter([False, True])  # the route itself makes the first read

        async def read_or_fail(*args: Any) -> Any:
            if next(failures, False):
                raise Unavailable("the store cannot be read")
            return await read(*args)

        monkeypatch.setattr(stored, "read", read_or_fail)
        assert await again(server, id) == events
        assert next(failures, None) is None


async def test_the_official_client_resumes():
    async with answering() as server:
        client = server.openai.responses
        first = await client.create(model="default", input="hi", **STREAMED)
        events = [event async for event in first]
        resumed = await client.retrieve(events[0].response.id, stream=True, starting_after=2)
        assert [event async for event in resumed] == events[3:]


async def test_a_cancelled_one_ends_when_it_is_read_again():
    script = Gated()
    script.start.set()
    async with answering(script) as server:
        asking = asyncio.create_task(stream(server, **STREAMED))
        id = await begun_id(server)
        await until_status(server, id, "in_progress")
        await server.http.post(f"{URL}/{id}/cancel")
        assert await again(server, id) == await asking


@pytest.mark.parametrize("fields", [{}, {"background": True}, {"stream": True}])
async def test_others_have_no_stream_to_read_again(fields):
    async with answering() as server:
        if "stream" in fields:
            id = (await stream(server, **fields))[0]["response"]["id"]
        else:
            id = (await create(server, **fields))["id"]
        answer = await server.http.get(f"{URL}/{id}?stream=true")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "stream"


async def test_stream_is_true_or_false():
    async with answering() as server:
        id = (await stream(server, **STREAMED))[0]["response"]["id"]
        wrong = await server.http.get(f"{URL}/{id}?stream=perhaps")
        whole = await server.http.get(f"{URL}/{id}?stream=False")
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "stream"
    assert whole.json()["id"] == id


@pytest.mark.parametrize("after", ["-1", "x", "1" * 30, ""])
async def test_starting_after_is_a_number(after):
    async with answering() as server:
        id = (await stream(server, **STREAMED))[0]["response"]["id"]
        answer = await server.http.get(f"{URL}/{id}?stream=true&starting_after={after}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "starting_after"


async def test_a_deleted_response_has_no_stream():
    async with a_store() as store, answering(store=store) as server:
        id = (await stream(server, **STREAMED))[0]["response"]["id"]
        assert await store.response_events.read(id, 0)
        await server.http.delete(f"{URL}/{id}")
        assert (await server.http.get(f"{URL}/{id}?stream=true")).status_code == 404
        assert await store.response_events.read(id, 0) == []


async def test_what_a_dead_process_streamed_has_failed(monkeypatch):
    monkeypatch.setattr("penstock.api.responses.response_runs.WATCHED_S", 0.0)
    monkeypatch.setattr("penstock.api.responses.stream_log.END_TIMEOUT_S", 0.0)
    clock = MovableClock()
    async with a_store(clock) as store, answering(store=store) as server:
        begun = orphan("in_progress")
        await store.responses.create(begun)
        whole = (await stream(server, **STREAMED))[0]["response"]["id"]
        head = (await store.response_events.read(whole, 0))[0]
        assert (head.first, head.following) == (0, 3)
        await store.response_events.append(begun.id, head)
        clock.now += 60
        *_, last = await again(server, begun.id)
    assert last["type"] == "response.failed" and last["sequence_number"] == 3
    assert last["response"]["error"]["code"] == "unavailable"


async def test_the_end_that_a_dead_process_owes_comes_after_what_the_client_has(monkeypatch):
    monkeypatch.setattr("penstock.api.responses.response_runs.WATCHED_S", 0.0)
    monkeypatch.setattr("penstock.api.responses.stream_log.END_TIMEOUT_S", 0.0)
    clock = MovableClock()
    async with a_store(clock) as store, answering(store=store) as server:
        begun = orphan("in_progress")
        await store.responses.create(begun)
        whole = (await stream(server, **STREAMED))[0]["response"]["id"]
        await store.response_events.append(
            begun.id, (await store.response_events.read(whole, 0))[0]
        )
        clock.now += 60
        (last,) = await again(server, begun.id, after=7)
    assert last["type"] == "response.failed" and last["sequence_number"] == 8


async def test_a_stream_whose_last_events_are_long_in_being_written_is_whole(monkeypatch):
    """The response has ended; only the end of its stream waits for the disk."""
    monkeypatch.setattr("penstock.api.responses.stream_log.END_TIMEOUT_S", 0.01)
    async with a_store() as store, answering(store=store) as server:
        append, freed = store.response_events.append, asyncio.Event()

        async def slow_at_the_end(id, chunk):
            if chunk.first > 0:
                await freed.wait()
            await append(id, chunk)

        monkeypatch.setattr(store.response_events, "append", slow_at_the_end)
        events = await stream(server, **STREAMED)
        asked, reads = asyncio.Event(), store.response_events.read

        async def read(id, wanted):
            if wanted > 0:
                asked.set()
            return await reads(id, wanted)

        monkeypatch.setattr(store.response_events, "read", read)
        reading = asyncio.create_task(again(server, events[0]["response"]["id"], after=5))
        looking = asyncio.create_task(asked.wait())  # the second read: the first one found no end
        await asyncio.wait((looking, reading), return_when=asyncio.FIRST_COMPLETED)
        freed.set()
        assert await reading == events[6:]


async def test_events_go_with_their_response():
    clock = MovableClock()
    async with a_store(clock) as store, answering(store=store) as server:
        id = (await stream(server, **STREAMED))[0]["response"]["id"]
        await store.response_events.append("resp_gone", EventChunk(0, 1, b"x"))
        await store.sweep.run()
        assert await store.response_events.read("resp_gone", 0) == []
        assert await store.response_events.read(id, 0)


async def test_a_stream_whose_end_could_not_be_written_at_once_is_whole(monkeypatch):
    monkeypatch.setattr("penstock.api.responses.stream_log.RETRY_INTERVAL_S", 0.001)
    async with a_store() as store, answering(store=store) as server:
        append = store.response_events.append
        failures = [Unavailable("locked"), Unavailable("locked")]

        async def locked_at_the_end(id, chunk):
            if chunk.first > 0 and failures:
                raise failures.pop()
            await append(id, chunk)

        monkeypatch.setattr(store.response_events, "append", locked_at_the_end)
        events = await stream(server, **STREAMED)
        assert await again(server, events[0]["response"]["id"]) == events
        assert not failures
