"""The load client for servers that outrun asyncio: one thread, epoll, keep-alive connections.

It only sends prepared requests and records when which bytes came; they are parsed afterwards. It
costs about 3 us per piece of an answer itself.
"""

from __future__ import annotations

import gc
import re
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

CHUNKED_END = b"\r\n0\r\n\r\n"
RECEIVE_BYTES = 256 * 1024
NAP_S = 0.0001
"""Interval between two polls: without it each piece would wake the client up, at the expense of the
server's CPU time. Measured times are late by at most this much."""
SO_TIMESTAMPNS = 35  # a Linux socket option that Python does not name
STAMP = struct.Struct("qq")
STAMP_ROOM_BYTES = socket.CMSG_SPACE(STAMP.size)
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Piece(NamedTuple):
    """The bytes of one read. `arrived_s`: the time at which the kernel had the last of them, which
    on loopback is during the server's `send`."""

    read_s: float
    arrived_s: float
    data: bytes


@dataclass(slots=True)
class Exchange:
    """One request and its answer. Times are `time.monotonic()`, as the engine's timestamps are."""

    began_s: float
    pieces: list[Piece] = field(default_factory=list)

    @property
    def ended_s(self) -> float:
        return self.pieces[-1].read_s

    @property
    def answer(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)

    @property
    def ok(self) -> bool:
        return self.pieces[0].data.startswith(b"HTTP/1.1 200")


class _Connection:
    """A connection that sends the next request as soon as an answer is complete."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._wall_s = time.time() - time.monotonic()
        self.exchange = Exchange(0.0)
        self._tail = b""
        self._left: int | None = None  # bytes of a body of known length
        self._in_head = True

    def ask(self, request: bytes) -> None:
        self.exchange = Exchange(time.monotonic())
        self._tail, self._left, self._in_head = b"", None, True
        self.sock.sendall(request)

    def take(self) -> bool:
        """Receive the available bytes; return whether the answer is now complete."""
        data, ancillary, _, _ = self.sock.recvmsg(RECEIVE_BYTES, STAMP_ROOM_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection before the end of an answer")
        seconds, nanoseconds = STAMP.unpack(ancillary[0][2])
        arrived_s = seconds - self._wall_s + nanoseconds / 1e9
        self.exchange.pieces.append(Piece(time.monotonic(), arrived_s, data))
        if not self._in_head and self._left is None:
            if len(data) >= len(CHUNKED_END):
                self._tail = data[-len(CHUNKED_END) :]
            else:
                self._tail = (self._tail + data)[-len(CHUNKED_END) :]
            return self._tail == CHUNKED_END
        if self._in_head:
            whole = self.exchange.answer
            head, found, body = whole.partition(b"\r\n\r\n")
            if not found:
                return False
            self._in_head = False
            length = _LENGTH.search(head)
            if length is None:
                self._tail = whole[-len(CHUNKED_END) :]
                return self._tail == CHUNKED_END
            self._left = int(length[1]) - len(body)
        else:
            assert self._left is not None
            self._left -= len(data)
        return self._left <= 0


def drive(
    address: tuple[str, int], requests: Iterator[bytes], connections: int, seconds: float
) -> list[Exchange]:
    """Send requests on `connections` connections for `seconds`, or until there are no more; return
    the exchanges ordered by their ends. Requests in flight at the end are completed."""
    done: list[Exchange] = []
    poll = select.epoll()
    pool: dict[int, _Connection] = {}
    gc.disable()
    try:
        for _ in range(connections):
            connection = _Connection(address)
            pool[connection.sock.fileno()] = connection
            poll.register(connection.sock, select.EPOLLIN)
        end_s = time.monotonic() + seconds
        asking = 0
        for connection, request in zip(pool.values(), requests, strict=False):
            connection.ask(request)
            asking += 1
        while asking:
            time.sleep(NAP_S)
            for number, _ in poll.poll():
                connection = pool[number]
                if not connection.take():
                    continue
                done.append(connection.exchange)
                request = next(requests, b"") if time.monotonic() < end_s else b""
                if request:
                    connection.ask(request)
                else:
                    asking -= 1
    finally:
        gc.enable()
        poll.close()
        for connection in pool.values():
            connection.sock.close()
    return done
