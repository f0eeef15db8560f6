"""MCP servers that are reached over HTTP, good and bad ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.mcp_server_program import honest_server
from tests.support.servers.mcp_servers import (
    call,
    connecting,
    serving_app,
    serving_bytes,
    tool_named,
    until,
)


def app_of(kind: str) -> Any:
    """Return the ASGI app of a server with one of the three transports."""
    server = honest_server()
    match kind:
        case "json":
            return server.streamable_http_app(json_response=True)
        case "stream":
            return server.streamable_http_app()
        case _:
            return server.sse_app()


def entry_of(kind: str, port: int, **fields: Any) -> dict[str, Any]:
    path = "sse" if kind == "sse" else "mcp"
    kind = "sse" if kind == "sse" else "http"
    return {"type": kind, "url": f"http://127.0.0.1:{port}/{path}", **fields}


@asynccontextmanager
async def serving(kind: str, port: int = 0) -> AsyncIterator[dict[str, dict[str, Any]]]:
    """Serve the honest server; yield the entries for its client."""
    async with serving_app(app_of(kind), port) as port:
        yield {"s": entry_of(kind, port)}


class Recorder:
    """Passes requests on to `app`, keeps their headers, and answers 401 without the right token."""

    def __init__(self, app: Any, token: str) -> None:
        self.app = app
        self.token = token
        self.headers: list[dict[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            self.headers.append(headers)
            if headers.get(b"authorization") != f"Bearer {self.token}".encode():
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b"no"})
                return
        await self.app(scope, receive, send)


@pytest.mark.parametrize("kind", ["json", "stream", "sse"])
async def test_tools_are_called_over_each_transport(kind: str) -> None:
    async with serving(kind) as entries, connecting(entries) as servers:
        assert (await call(servers, "s_add", a=1, b=2)).result == "3"
        assert (await call(servers, "s_fail")).is_error
        assert (await call(servers, "s_mixed")).result == "one\n[Image: image/png]\ntwo"


@pytest.mark.parametrize("kind", ["stream", "sse"])
async def test_added_tools_appear(kind: str) -> None:
    async with serving(kind) as entries, connecting(entries) as servers:
        await call(servers, "s_grow")
        await until(lambda: any(tool.info.name == "s_grown" for tool in servers.tools()))


@pytest.mark.parametrize("kind", ["stream", "sse"])
async def test_a_cancelled_call_is_cancelled_at_the_server(kind: str, tmp_path: Path) -> None:
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    async with serving(kind) as entries, connecting(entries) as servers:
        task = asyncio.create_task(
            call(servers, "s_wait", started=str(started), cancelled=str(cancelled))
        )
        await until(started.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(cancelled.exists)
        assert (await call(servers, "s_add", a=1, b=1)).result == "2"


async def test_headers_and_token_are_sent_with_every_request() -> None:
    recorder = Recorder(app_of("stream"), "secret")
    async with serving_app(recorder) as port:
        headers = {"Authorization": "Bearer secret", "X-Team": "a"}
        async with connecting({"s": entry_of("stream", port, headers=headers)}) as servers:
            assert (await call(servers, "s_add", a=1, b=2)).result == "3"
    assert recorder.headers and all(sent[b"x-team"] == b"a" for sent in recorder.headers)


async def test_a_refused_token_is_reported_with_its_status() -> None:
    async with (
        serving_app(Recorder(app_of("stream"), "secret")) as port,
        connecting({"s": entry_of("stream", port)}) as servers,
    ):
        (status,) = servers.status()
        assert not status.connected and "HTTP 401" in str(status.last_error)


@pytest.mark.parametrize("kind", ["json", "stream", "sse"])
async def test_a_server_that_restarts_is_found_again(kind: str) -> None:
    async with serving_app(app_of(kind)) as port:
        pass
    async with connecting({"s": entry_of(kind, port)}) as servers:
        assert not servers.status()[0].connected and servers.status()[0].last_error
        async with serving(kind, port):
            await until(lambda: servers.status()[0].connected)
            add = tool_named(servers, "s_add")
        assert (await add._call({"a": 1, "b": 2})).is_error
        async with serving(kind, port):
            await until(lambda: servers.status()[0].connected and bool(servers.tools()))

            async def answered() -> bool:
                return not (await add._call({"a": 1, "b": 2})).is_error

            while not await answered():
                await asyncio.sleep(0.01)


async def garbage(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff not HTTP at all\r\n\r\n")


async def page(writer: asyncio.StreamWriter) -> None:
    body = b"<html>welcome</html>"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(body) + body)


async def broken_json(writer: asyncio.StreamWriter) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    writer.write(head + b'{"jsonrpc": "2.0", "id": ')


async def nothing(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def flood(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    for _ in range(100):
        writer.write(b"x" * 1_000_000)
        await writer.drain()


async def event_flood(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: message\r\ndata: "
    )
    for _ in range(100):
        writer.write(b"x" * 1_000_000)
        await writer.drain()


@pytest.mark.parametrize("kind", ["http", "sse"])
@pytest.mark.parametrize("answer", [garbage, page, broken_json, nothing, flood, event_flood])
async def test_bad_answers_disable_only_their_server(answer: Any, kind: str) -> None:
    async with serving_bytes(answer) as url, serving("stream") as entries:
        entries = {**entries, "bad": {"type": kind, "url": url}}
        async with connecting(entries, timeout_s=2) as servers:
            good, bad = servers.status()
            assert good.connected and not bad.connected and bad.last_error
            assert {tool.info.server for tool in servers.tools()} == {"s"}
            assert (await call(servers, "s_add", a=1, b=2)).result == "3"
