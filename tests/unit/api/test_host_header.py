"""The Host header of a request (RFC 9112, section 3.2)."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.support.servers.http_server import serving


async def answer_to(*lines: bytes, version: bytes = b"1.1") -> tuple[int, bytes]:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        head = (b"GET /health HTTP/" + version, *lines, b"connection: close")
        writer.write(b"\r\n".join(head) + b"\r\n\r\n")
        raw = await reader.read()
        writer.close()
    told, _, body = raw.partition(b"\r\n\r\n")
    return int(told.split(b" ", 2)[1]), body


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize(
    "value",
    [b"x", b"", b"my_model.internal:8080", b"127.0.0.1:", b"[::1]:1234", b"xn--bcher-kva.example"],
)
async def test_request_with_one_host_is_served(value, version):
    assert await answer_to(b"Host: " + value, version=version) == (200, b"OK")


async def test_http_1_0_needs_no_host():
    assert await answer_to(version=b"1.0") == (200, b"OK")


@pytest.mark.parametrize(
    ("lines", "version", "told"),
    [
        ((), b"1.1", "no Host line"),
        ((b"Host: a", b"host: a"), b"1.1", "2 Host lines"),
        ((b"Host: a", b"host: b"), b"1.0", "2 Host lines"),
        ((b"Host: a b",), b"1.1", "not valid"),
        ((b"Host: a/b",), b"1.1", "not valid"),
        ((b"Host: u@a",), b"1.1", "not valid"),
        ((b"Host: a:b",), b"1.1", "not valid"),
        ((b"Host: \xff",), b"1.1", "not valid"),
    ],
)
async def test_invalid_host_lines_are_rejected(lines, version, told):
    status, body = await answer_to(*lines, version=version)
    error = json.loads(body)["error"]
    assert status == 400 and error["code"] == "invalid_http" and told in error["message"]
