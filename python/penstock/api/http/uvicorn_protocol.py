"""HTTP/1.1 connections with the bounds that uvicorn's protocol leaves open.

A client must name one host and send its head in time and within a size, as whatever else is no
body (what frames chunks, and trailers, which nobody reads); may not send on for ever after its
request was refused; may not leave its answer unread for ever; and there are only so many
connections.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade
from starlette.types import Message, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from penstock.api.codecs.openai_envelope import error_body
from penstock.base.errors import InvalidRequest, ServiceError, Unavailable

HEAD_LIMIT_BYTES: Final = 64 * 1024
HEAD_TIMEOUT_S: Final = 20.0
LINGER_S: Final = 5.0
# What tells how long a body is.
FRAMING: Final = (b"content-length", b"transfer-encoding")
# A host, by name or address, and a port; each may be absent (RFC 9110, 7.2; RFC 3986, 3.2.2).
HOST: Final = re.compile(rb"(?:\[[0-9A-Za-z.:%]+\]|[0-9A-Za-z._~%!$&'()*+,;=-]*)(?::[0-9]*)?")


class HeadTooLarge(ServiceError):
    status = 431
    kind = "invalid_request_error"
    code = "headers_too_large"


class DirectConnection:
    """`record.Connection`: sends pieces of one answer of unknown length, past ASGI and the
    middlewares, and tells when the client is gone.

    Not `ready` where a piece must wait, where the head is not out, or nobody is there: ASGI's
    `send` knows what to do then.
    """

    __slots__ = ("_cycle", "_flow", "_protocol", "_send")

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol = protocol
        self._cycle = protocol.cycle
        self._flow = protocol.flow
        self._send = protocol.transport.write

    @property
    def received(self) -> bool:
        return not self._cycle.more_body

    @property
    def ready(self) -> bool:
        cycle = self._cycle
        return bool(
            cycle.chunked_encoding and not cycle.disconnected and not self._flow.write_paused
        )

    @property
    def stopped(self) -> bool:
        return self._protocol.stopped

    def write(self, data: bytes) -> None:
        self._send(b"%x\r\n%b\r\n" % (len(data), data))

    def when_gone(self, call: Callable[[], None] | None) -> None:
        self._protocol.gone = call
        if call is not None:
            self._flow.resume_reading()  # or nothing would tell
            if self._cycle.disconnected:
                self._protocol.loop.call_soon(call)


class _CloseDelimited:
    """ASGI's `send` to an HTTP/1.0 client, who knows no chunked coding: where nothing tells the
    length of an answer, the end of the connection is its end (RFC 9112, 6.3)."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send: Send = cycle.send  # type: ignore[assignment]
        self._sized = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._sized = any(name.lower() == b"content-length" for name, _ in message["headers"])
            if not self._sized:
                self._cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and not self._sized:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. `max_connections` is set by `bounded_protocol`."""

    max_connections: int = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = False
        self._in_message = False
        self._messages = 0
        # Read of an unfinished message since the last byte of its body.
        self._between_bytes = 0
        # The parser reads a head that `_reframe` wrote, or the body after it.
        self._reframed = False
        self._deadline: asyncio.TimerHandle | None = None
        self.gone: Callable[[], None] | None = None
        self.stopped = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(Unavailable("too many connections"))
            return
        self._set_deadline(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)
        if self.gone is not None:
            self.gone()

    def stop(self) -> None:
        """Close the connection at once: the server ends."""
        self.stopped = True
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        message = self._messages if self._in_message and not self._in_head else None
        self._between_bytes += len(data)
        self._parse(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT_BYTES:
                self._refuse(_head_too_large())
            elif self._deadline is None:
                self._set_deadline(HEAD_TIMEOUT_S)
        elif message == self._messages and self._in_message:  # the same, beyond its head
            self._check_between()

    def on_message_begin(self) -> None:
        if self._reframed:
            return
        super().on_message_begin()
        self._in_message = self._in_head = True
        self._messages += 1
        self._head_bytes = self._between_bytes = 0
        self.scope["state"]["abort"] = self.transport.abort

    def on_url(self, url: bytes) -> None:
        if not self._reframed:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._reframed:
            return
        self._in_head = False
        self._clear_deadline()
        check_size(self.url, self.headers)
        check_host(self.parser.get_http_version(), self.headers)
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            send: Any = _CloseDelimited(self.cycle)
            self.cycle.send = send  # type: ignore[method-assign]
        self.scope["state"]["connection"] = DirectConnection(self)

    def on_body(self, body: bytes) -> None:
        self._between_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and self._framing():
            return  # its body comes yet
        self._in_message = self._reframed = False
        super().on_message_complete()
        if self.cycle.response_complete:  # the rest of a refused body: an idle connection again
            self._set_deadline(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """A refused body may still be arriving; it is dropped unread, but not for ever. The body of
        the next request is none of that."""
        super().on_response_complete()
        if self._in_message and not self._in_head and self.cycle.response_complete:
            self._set_deadline(LINGER_S)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _check_between(self) -> None:
        if self._between_bytes <= HEAD_LIMIT_BYTES:
            return
        if self.cycle.response_started:
            self.transport.abort()
        else:
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        self._refuse(_invalid("the request is not valid HTTP"))

    def _parse(self, data: bytes) -> None:
        """Feed the parser. It takes a head that asks for an upgrade for a whole message, but
        HTTP/1.1 ignores an upgrade that it does not support (RFC 9110, 7.8): a body follows."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except HttpParserError as error:
                found = error.__context__  # what a callback raised
                if isinstance(found, ServiceError):
                    self._refuse(found)
                else:
                    self.send_400_response("")
                return
            except HttpParserUpgrade as upgrade:
                data = self._reframe(data[upgrade.args[0] :])

    def _reframe(self, rest: bytes) -> bytes:
        """What follows the head of a request that asks for an upgrade, as the parser takes it."""
        framing = self._framing()
        if not framing:
            return rest
        self._reframed = True
        fields = b"".join(b"%b: %b\r\n" % field for field in framing)
        return b"POST / HTTP/1.1\r\n%b\r\n%b" % (fields, rest)

    def _framing(self) -> list[tuple[bytes, bytes]]:
        return [field for field in self.headers if field[0] in FRAMING]

    def _refuse(self, error: ServiceError) -> None:
        """Answer without the application, and close."""
        body = error_body(error)
        head = (
            f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def check_size(url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises HeadTooLarge. A head may be here with one read, before anybody counts its bytes."""
    if len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > HEAD_LIMIT_BYTES:
        raise _head_too_large()


def check_host(version: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises InvalidRequest for a head that must be refused for its Host lines (RFC 9112, 3.2)."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise _invalid(f"the request has {len(hosts)} Host lines; send one")
    if not hosts and version != "1.0":
        raise _invalid(f"the request has no Host line; HTTP/{version} asks for one")
    if hosts and HOST.fullmatch(hosts[0]) is None:
        raise _invalid("the Host line names no host; send a name or an address, and a port")


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"the request's head is over {HEAD_LIMIT_BYTES} bytes")


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_http")


def bounded_protocol(max_connections: int) -> type[BoundedProtocol]:
    """The protocol class for a server with this bound."""
    return type("Bounded", (BoundedProtocol,), {"max_connections": max_connections})
