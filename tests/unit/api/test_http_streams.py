"""Streams: keep-alives, clients that disconnect or read slowly, the stop of the server."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from scripted_answers import CHAT, HELLO, waiting

from penstock.config import ServerSettings
from penstock.dialog import PartStarted, RunStarted, TextDelta
from tests.support.servers.http_server import (
    CREATED,
    MODEL,
    ScriptedLoop,
    frames_of,
    serving,
    spoken,
)


async def test_idle_stream_gets_keep_alive_comments():
    gate = asyncio.Event()
    settings = ServerSettings(keep_alive_interval_ms=5)
    async with serving(waiting(gate), settings=settings) as server:
        body = HELLO | {"stream": True}
        comments = 0
        lines = []
        async with server.http.stream("POST", CHAT, json=body) as answer:
            async for line in answer.aiter_lines():
                comments += line.startswith(":")
                if line.startswith("data:"):
                    lines.append(line)
                if comments == 3:
                    gate.set()
    assert comments >= 3 and lines[-1] == "data: [DONE]"


async def test_stream_opens_with_a_keep_alive_while_its_prompt_waits():
    gate = asyncio.Event()
    settings = ServerSettings(keep_alive_interval_ms=5)
    async with (
        serving(waiting(gate, after_text=False), settings=settings) as server,
        server.http.stream("POST", CHAT, json=HELLO | {"stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith(":")
        gate.set()
        assert [line async for line in lines][-2] == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnected_clients_leave_nothing_behind(stream):
    """200 clients send a request and disconnect, half of them during the response."""
    gate = asyncio.Event()
    async with serving(waiting(gate)) as server:
        port = int(server.url.split(":")[-1])
        body = json.dumps(HELLO | {"stream": stream}).encode()
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        tasks_before = len(asyncio.all_tasks())
        writers = []
        for _ in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head % (CHAT.encode(), len(body)) + body)
            writers.append(writer)
        await server.until(lambda: server.loop.running == 200)
        for writer in writers:
            writer.transport.abort()
        await server.until(lambda: server.loop.running == 0)
        await server.until(lambda: not server.server.server_state.tasks)
        await server.until(lambda: len(asyncio.all_tasks()) <= tasks_before)
        assert server.loop.cut_short == 200
        assert not server.server.server_state.connections
        gate.set()
        assert (await server.http.post(CHAT, json=HELLO)).status_code == 200


async def test_client_that_disconnects_within_its_body_leaves_nothing_behind():
    async with serving() as server:
        port = int(server.url.split(":")[-1])
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{" % CHAT.encode()
            )
            await writer.drain()
            writer.transport.abort()
        await server.until(lambda: not server.server.server_state.tasks)
        assert server.loop.requests == []


async def test_slow_reader_gets_the_same_text():
    count = 8_000
    gate = asyncio.Event()

    def script(request):
        for index, step in enumerate(spoken(*(["0123456789"] * count))(request)):
            if index == count:
                gate.set()
            yield step

    async with serving(script) as server:
        port = int(server.url.split(":")[-1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        body = json.dumps(HELLO | {"stream": True}).encode()
        head = b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % (CHAT.encode(), len(body)) + body)
        await gate.wait()  # the run has almost ended, but the client has read almost nothing
        raw = await reader.read(-1)
        writer.close()
    text = b"".join(_dechunk(raw.partition(b"\r\n\r\n")[2])).decode()
    chunks = [json.loads(frame) for frame in frames_of(text)[:-1]]
    said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert said == "0123456789" * count


def _dechunk(raw: bytes):
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        yield raw[: int(size, 16)]
        raw = raw[int(size, 16) + 2 :]


async def test_reader_that_stops_reading_is_dropped():
    def endless(request):
        yield RunStarted(MODEL, CREATED, 1)
        yield PartStarted(0, 0, "text")
        while True:
            yield TextDelta(0, 0, "x" * 10_000)

    settings = ServerSettings(stall_timeout_s=0.05, keep_alive_interval_ms=20)
    async with serving(endless, settings=settings) as server:
        port = int(server.url.split(":")[-1])
        _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        body = json.dumps(HELLO | {"stream": True}).encode()
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % (CHAT.encode(), len(body)) + body)
        await server.until(lambda: server.loop.cut_short == 1)
        await server.until(lambda: not server.server.server_state.connections)
        writer.transport.abort()


async def test_stopping_drains_open_streams_and_accepts_no_new_ones():
    gate = asyncio.Event()
    async with serving(waiting(gate)) as server:
        answer = asyncio.create_task(server.http.post(CHAT, json=HELLO | {"stream": True}))
        await server.until(lambda: server.loop.running == 1)
        server.server.stop()
        await server.until(lambda: not any(s.is_serving() for s in server.server.servers))
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(base_url=server.url) as fresh:
                await fresh.get("/health")
        gate.set()
        assert frames_of((await answer).text)[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
async def test_stopping_twice_closes_streams_and_is_not_a_client_disconnect(stream, caplog):
    caplog.set_level("INFO", logger="penstock")
    gate = asyncio.Event()
    async with serving(waiting(gate)) as server:
        answer = asyncio.create_task(server.http.post(CHAT, json=HELLO | {"stream": stream}))
        await server.until(lambda: server.loop.running == 1)
        server.server.stop()
        assert "a second Ctrl-C or SIGTERM ends them at once" in caplog.text
        server.server.stop()
        with pytest.raises(httpx.HTTPError):
            await answer
        await server.until(lambda: server.loop.running == 0)
    assert "outcome=server_stopped" in caplog.text and "client_disconnected" not in caplog.text


class ClosingSlowly(ScriptedLoop):
    """Ends its work only after `gate` is set."""

    def __init__(self, script):
        super().__init__(script)
        self.gate = asyncio.Event()

    async def run(self, request):
        try:
            async for event in super().run(request):
                yield event
        finally:
            await self.gate.wait()


async def test_a_client_may_leave_after_the_last_event(caplog):
    """A run with tools has work left then. It is neither cancelled nor recorded as a disconnect."""
    caplog.set_level("INFO", logger="penstock")
    loop = ClosingSlowly(spoken("Hello"))
    async with serving(models={MODEL: loop}) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            answer = await client.post(CHAT, json=HELLO | {"stream": True})
            assert frames_of(answer.text)[-1] == "[DONE]"
        await server.http.get("/health")  # meanwhile the server notices the closed connection
        loop.gate.set()
        await server.until(lambda: "request completed" in caplog.text)
    (line,) = (line for line in caplog.messages if "completed" in line and f"route={CHAT}" in line)
    assert "outcome=completed" in line


async def test_drain_timeout_ends_streams_with_an_error():
    gate = asyncio.Event()
    settings = ServerSettings(drain_timeout_s=0.0)
    async with (
        serving(waiting(gate), settings=settings) as server,
        server.http.stream("POST", CHAT, json=HELLO | {"stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        server.server.stop()
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]" and "shutting down" in rest[-2]
