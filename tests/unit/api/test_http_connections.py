"""Connections: old clients, heads and targets that are none, how many there may be."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from scripted_answers import CHAT, HELLO

from penstock.config import ServerSettings
from tests.support.servers.http_server import serving, spoken


@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
async def test_stream_to_an_http_1_0_client_is_ended_by_the_connection(connection):
    body = json.dumps(HELLO | {"stream": True}).encode()
    head = b"POST %b HTTP/1.0\r\nconnection: %b\r\ncontent-length: %d\r\n\r\n"
    async with serving(spoken("Hel", "lo")) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(head % (CHAT.encode(), connection, len(body)) + body)
        told, _, frames = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert b"transfer-encoding" not in told and b"connection: close" in told
    assert frames.startswith(b"data: {") and frames.endswith(b"}\n\ndata: [DONE]\n\n")


async def test_answer_to_an_http_1_0_client_has_its_length():
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(b"GET /v1/models HTTP/1.0\r\n\r\n")
        told, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert b"content-length: %d" % len(answer) in told and json.loads(answer)["data"]


async def test_head_over_its_limit_and_garbage_are_refused():
    async with serving() as server:
        port = int(server.url.split(":")[-1])
        for request, status in (
            (b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 100_000, b"431"),
            (b"GET /" + b"a" * 1_000_000, b"431"),
            (b"\x16\x03\x01garbage\r\n\r\n", b"400"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            assert status in await reader.readuntil(b"\r\n")
            writer.close()
        assert (await server.http.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("target", "line", "status"),
    [
        (b"/health", b"x: y\r\n" * 150, b"200"),
        (b"/health", b"x: y\r\n" * 250, b"431"),
        (b"/health", b"x: %b\r\n" % (b"y" * 1000), b"431"),
        (b"/health?%b" % (b"y" * 1000), b"", b"431"),
    ],
)
async def test_head_that_is_here_with_one_read_has_the_same_limit(
    target, line, status, monkeypatch
):
    monkeypatch.setattr("penstock.api.http.uvicorn_protocol.HEAD_LIMIT_BYTES", 1000)
    head = b"GET %b HTTP/1.1\r\nhost: x\r\n%b\r\n" % (target, line)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(head)
        assert status in await reader.readuntil(b"\r\n")
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /heal", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
async def test_client_that_never_ends_its_head_is_dropped(sent, monkeypatch):
    monkeypatch.setattr("penstock.api.http.uvicorn_protocol.HEAD_TIMEOUT_S", 0.02)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert (await server.http.get("/health")).status_code == 200


@pytest.mark.parametrize("framing", ["content-length", "chunked", "in pieces"])
async def test_upgrade_that_is_not_supported_is_ignored(framing):
    body = json.dumps(HELLO).encode()
    framed = b"content-length: %d\r\n\r\n%b" % (len(body), body)
    if framing == "chunked":
        framed = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n" % CHAT.encode()
    health = (
        b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n\r\n"
    )
    sent = head + framed + head + framed + health
    async with serving() as server:
        port = int(server.url.split(":")[-1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in [bytes((byte,)) for byte in sent] if framing == "in pieces" else [sent]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        raw = await reader.read(-1)
        writer.close()
    assert raw.count(b"HTTP/1.1 200 OK") == 3 and raw.count(b'"Hello!"') == 2


@pytest.mark.parametrize("target", [b"a:1", b"/" + b"x" * 65_600, b"//["])
async def test_target_that_is_no_url_is_refused_also_behind_a_good_one(target: bytes):
    async with serving() as server:
        port = int(server.url.split(":")[-1])
        for before in (b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(before)
            if before:
                assert b"200" in await reader.readuntil(b"\r\n")
            writer.write(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % target)
            await reader.readuntil(b"HTTP/1.1 4")
            writer.close()


async def test_connections_beyond_the_bound_are_told_so():
    async with serving(settings=ServerSettings(max_connections=1)) as server:
        assert (await server.http.get("/health")).status_code == 200
        port = int(server.url.split(":")[-1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert b"503" in await reader.readuntil(b"\r\n")
        writer.close()


async def test_a_thousand_idle_connections_hold_nobody_up():
    async with serving() as server:
        port = int(server.url.split(":")[-1])
        writers = []
        for _ in range(1000):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"200" in await reader.readuntil(b"\r\n")
            writers.append(writer)
        assert len(server.server.server_state.connections) >= 1000
        assert (await server.http.post(CHAT, json=HELLO)).status_code == 200
        for writer in writers:
            writer.transport.abort()
        await server.until(lambda: len(server.server.server_state.connections) <= 1)
