"""Request bodies: limits on size and time, and framing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from types import SimpleNamespace

import httpx
import orjson
import pytest
from scripted_answers import CHAT, HELLO, waiting

from penstock.api.http.request_body import BUDGET_BODIES, SMALL_BODY_SHARE
from penstock.api.routes.request_reader import THREAD_BODY_BYTES
from penstock.config import ServerSettings
from tests.support.servers.http_server import MODEL, serving

SMALL = ServerSettings(body_limit_bytes=64 * 1024)


async def test_body_over_the_limit_is_rejected_and_the_connection_stays_open():
    async with serving(settings=SMALL) as server:
        for size, status in ((64 * 1024 + 1, 413), (64 * 1024, 400), (5_000_000, 413)):
            answer = await server.http.post(CHAT, content=b"x" * size)
            assert answer.status_code == status
        assert answer.json()["error"]["code"] == "payload_too_large"
        assert (await server.http.post(CHAT, json=HELLO)).status_code == 200


async def test_chunked_body_over_the_limit_is_rejected_while_it_arrives():
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 16 * 1024
            yield b" " * 16 * 1024

    async with serving(settings=SMALL) as server:
        with pytest.raises(httpx.HTTPError):
            # The server closes the connection on an endless body, before the response is read.
            await asyncio.wait_for(_post_and_check_413(server, endless()), 10)
    assert sent < 100 * 1024 * 1024


async def _post_and_check_413(server, content):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
    writer.write(
        b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
    )
    async for chunk in content:
        writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        await writer.drain()
        if reader._buffer:
            break
    head = await reader.readuntil(b"\r\n")
    assert b"413" in head
    writer.close()
    raise httpx.HTTPError("done")


async def test_body_over_the_limit_is_not_buffered():
    async with serving(settings=SMALL) as server:
        port = int(server.url.split(":")[-1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000000\r\n\r\n"
        writer.write(head % CHAT.encode())
        assert b"413" in await reader.readuntil(b"\r\n")  # before any byte of the body is sent
        writer.close()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", CHAT, HELLO),
        ("POST", CHAT, {"messages": 5}),
        ("PUT", "/v1/sessions/s", {"messages": []}),
        ("POST", "/v1/agent/approvals/a", {"decision": "deny"}),
        ("POST", "/v1/models/status", {"model_id": MODEL}),
        ("POST", "/v1/models/tune", {"model_id": "absent"}),
    ],
)
async def test_large_bodies_are_decoded_in_threads(method, path, body, monkeypatch):
    threads = set()

    def loads(body):
        threads.add(threading.current_thread())
        return orjson.loads(body)

    watched = SimpleNamespace(loads=loads, JSONDecodeError=orjson.JSONDecodeError)
    monkeypatch.setattr("penstock.api.codecs.request_fields.json_body.orjson", watched)
    async with serving() as server:
        await server.http.request(method, path, json=body | {"x": "x" * THREAD_BODY_BYTES})
    assert threads and threading.current_thread() not in threads


@pytest.mark.parametrize("path", [CHAT, "/v1/skills"])
async def test_bodies_in_flight_share_a_budget(path):
    async with serving(settings=SMALL) as server:
        port = int(server.url.split(":")[-1])
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 65536\r\n" % path.encode()
        head += b"content-type: multipart/form-data; boundary=b\r\n\r\n"
        part = b'--b\r\ncontent-disposition: form-data; name="files"; filename="a"\r\n\r\n'
        writers = []
        for _ in range(BUDGET_BODIES):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + part.ljust(65535))
            writers.append(writer)
        held = SMALL.body_limit_bytes * BUDGET_BODIES - BUDGET_BODIES
        await server.until(lambda: server.services.bodies._buffered_bytes == held)
        large = HELLO | {"x": "x" * (SMALL.body_limit_bytes // SMALL_BODY_SHARE)}
        refused = await server.http.post(CHAT, json=large)
        assert refused.status_code == 429 and "retry-after" in refused.headers
        assert (await server.http.post(CHAT, json=HELLO)).status_code == 200  # a small body
        for writer in writers:
            writer.close()
        await server.until(lambda: server.services.bodies._buffered_bytes == 0)
        assert (await server.http.post(CHAT, json=large)).status_code == 200


async def test_body_after_another_response_may_arrive_slowly(monkeypatch):
    monkeypatch.setattr("penstock.api.http.uvicorn_protocol.LINGER_S", 0.0)
    gate = asyncio.Event()
    body = json.dumps(HELLO).encode()
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body))
    async with serving(waiting(gate)) as server:
        port = int(server.url.split(":")[-1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body + head + body[:9])
        await server.until(lambda: server.loop.running == 1)
        gate.set()
        assert b"200 OK" in await reader.readuntil(b'"Hello"')
        await server.until(lambda: server.loop.running == 0)
        await server.until(lambda: len(server.server.server_state.tasks) == 1)
        writer.write(body[9:])
        assert b"200 OK" in await reader.readuntil(b'"Hello"')
        writer.close()


async def test_unfinished_body_times_out():
    async with serving(settings=ServerSettings(stall_timeout_s=0.02)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"messages"')
        assert b" 408 " in await reader.readuntil(b"\r\n")
        assert b"request_timeout" in await reader.readuntil(b"}}")
        writer.close()
        assert server.loop.requests == []


CHUNKED = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize("last", [b"0\r\n", b"5;"], ids=["trailers", "extension"])
@pytest.mark.parametrize("piece", [b"x: y\r\n", b"x"], ids=["lines", "no end"])
async def test_framing_and_trailers_are_limited(last: bytes, piece: bytes):
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(CHUNKED + b"1\r\n \r\n" + last)
        answer = asyncio.create_task(reader.read())
        for _ in range(1000):
            if answer.done():
                break
            writer.write(piece * (1024 // len(piece)))
            await asyncio.sleep(0)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        else:
            raise AssertionError("a megabyte was taken")
        with contextlib.suppress(ConnectionError):
            assert b"400" in (await answer)[:20]
        writer.close()
        assert server.loop.requests == []


async def test_trailers_are_ignored():
    body = json.dumps(HELLO).encode()
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        for _ in range(2):  # the connection stays open
            writer.write(CHUNKED + chunks + b"0\r\ncontent-type: text/html\r\nx: y\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b'"Hello!"')
            await reader.readuntil(b"}}}")
        writer.close()


async def test_body_in_a_hundred_thousand_chunks_is_accepted():
    body = json.dumps(HELLO).encode()
    padded = body + b" " * (100_000 - len(body))
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in padded) + b"0\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b'"Hello!"')
        writer.close()


async def test_body_sent_byte_by_byte_times_out():
    async with serving(settings=ServerSettings(stall_timeout_s=0.2)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n".encode())
        answer = asyncio.create_task(reader.readuntil(b"}}"))
        while not answer.done():  # no pause exceeds the stall timeout
            writer.write(b" ")
            await asyncio.sleep(0.01)
        assert b" 408 " in answer.result()
        writer.close()
