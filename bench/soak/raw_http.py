"""HTTP/1.1 as bytes: requests, well-formed or not, and the answers to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

READ_BYTES = 64 * 1024
RESET = struct.pack("ii", 1, 0)  # SO_LINGER 0: close with a reset
Body = bytes | Mapping[str, Any]


class Malformed(ValueError):
    """The answer is not valid HTTP."""


@dataclass(frozen=True)
class Answer:
    """One answer. `whole`: it is complete."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """Return the data lines of a stream."""
        lines = self.body.decode().split("\n")
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


@dataclass(frozen=True)
class Pause:
    """Send nothing for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Await:
    """Continue when a number of bytes of the answer have arrived, or its end."""

    num_bytes: int


@dataclass(frozen=True)
class HalfClose:
    """Close the sending direction."""


@dataclass(frozen=True)
class Reset:
    """Close both directions at once and read nothing more."""


Step = bytes | Pause | Await | HalfClose | Reset


def request(method: str, path: str, body: Body = b"", headers: Mapping[str, str] = {}) -> bytes:
    """Build a request after which the server closes the connection; a mapping is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Host": "soak", "Connection": "close", "Content-Length": str(len(data)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + data


@dataclass
class _Reading:
    raw: bytearray = field(default_factory=bytearray)
    more: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False


async def converse(port: int, steps: tuple[Step, ...], timeout_s: float) -> bytes:
    """Carry out the steps on a new connection; return all bytes that arrived.

    Ends when the server closes, the last step is a reset, or the time is up (then it resets the
    connection).
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = _Reading()
    task = asyncio.create_task(_read(reader, reading))
    reset = True
    try:
        reset = await asyncio.wait_for(_take_all(steps, writer, reading, task), timeout_s)
    except (asyncio.TimeoutError, ConnectionError):
        pass
    finally:
        task.cancel()
        if reset:
            with contextlib.suppress(OSError):
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await task
    return bytes(reading.raw)


async def _take_all(
    steps: tuple[Step, ...],
    writer: asyncio.StreamWriter,
    reading: _Reading,
    until: asyncio.Task[None],
) -> bool:
    """Carry out all steps; return whether to reset the connection."""
    for step in steps:
        if await _take(step, writer, reading):
            return True
    await until
    return False


async def _take(step: Step, writer: asyncio.StreamWriter, reading: _Reading) -> bool:
    """Carry out one step; return whether to reset the connection."""
    match step:
        case Reset():
            return True
        case Pause():
            await asyncio.sleep(step.seconds)
        case Await():
            while len(reading.raw) < step.num_bytes and not reading.ended:
                reading.more.clear()
                await reading.more.wait()
        case HalfClose():
            writer.write_eof()
        case _:
            writer.write(step)
            with contextlib.suppress(ConnectionError):  # refused early: the answer has arrived
                await writer.drain()
    return False


async def _read(reader: asyncio.StreamReader, reading: _Reading) -> None:
    try:
        while data := await reader.read(READ_BYTES):
            reading.raw += data
            reading.more.set()
    except ConnectionError:
        pass
    reading.ended = True
    reading.more.set()


def answers(raw: bytes) -> Iterator[Answer]:
    """Parse the answers in the received bytes; the last one may be cut. Raises Malformed."""
    while raw:
        head, found, rest = raw.partition(b"\r\n\r\n")
        if not found:
            if not b"HTTP/1.1 ".startswith(raw[:9]) and not raw.startswith(b"HTTP/1.1 "):
                raise Malformed(repr(raw[:80]))
            return
        status, headers = _head(head)
        if 100 <= status < 200:
            raw = rest
            continue
        if headers.get("transfer-encoding") == "chunked":
            body, whole, raw = _dechunk(rest)
        else:
            size = int(headers.get("content-length", "0"))
            body, raw = rest[:size], rest[size:]
            whole = len(body) == size
        yield Answer(status, headers, body, whole)


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if version != "HTTP/1.1" or not rest[:3].isdigit():
        raise Malformed(first[:80])
    pairs = (line.partition(":") for line in lines)
    return int(rest[:3]), {name.lower(): value.strip() for name, _, value in pairs}


def _dechunk(raw: bytes) -> tuple[bytes, bool, bytes]:
    """Return the body so far, whether it is complete, and the bytes after it."""
    body = bytearray()
    while True:
        line, found, rest = raw.partition(b"\r\n")
        if not found:
            return bytes(body), False, b""
        try:
            size = int(line, 16)
        except ValueError:
            raise Malformed(f"chunk size {line[:20]!r}") from None
        if size == 0:
            return bytes(body), rest.startswith(b"\r\n"), rest[2:]
        body += rest[:size]
        if len(rest) < size + 2:
            return bytes(body), False, b""
        raw = rest[size + 2 :]
