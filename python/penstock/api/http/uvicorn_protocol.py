"""uvicorn's HTTP/1.1 protocol with additional limits.

- A request must have exactly one Host header with a valid value (HTTP/1.0: at most one).
- Request line and headers are limited in size and in time; chunk framing and trailers in size.
- After a request is refused, the rest of its body is read for a limited time.
- A client that does not read its response is disconnected.
- The number of connections is limited.
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
# Headers that determine where a body ends.
FRAMING: Final = (b"content-length", b"transfer-encoding")
# The value of Host: a host name or address, and a port; each may be absent (RFC 9110, 7.2; RFC
# 3986, 3.2.2).
HOST: Final = re.compile(rb"(?:\[[0-9A-Za-z.:%]+\]|[0-9A-Za-z._~%!$&'()*+,;=-]*)(?::[0-9]*)?")


class HeadTooLarge(ServiceError):
    status = 431
    kind = "invalid_request_error"
    code = "headers_too_large"


class DirectConnection:
    """Implements `request_record.Connection`: writes pieces of a chunked response directly to the
    connection, without ASGI and the middlewares, and calls back when the client disconnects.

    `ready` is False before the response has started, while the send buffer is full, and after the
    client has disconnected; the caller must then use ASGI's `send`.
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
            self._flow.resume_reading()  # a disconnect is noticed only while reading
            if self._cycle.disconnected:
                self._protocol.loop.call_soon(call)


class _CloseDelimited:
    """ASGI's `send` for an HTTP/1.0 client. HTTP/1.0 has no chunked coding, so the end of a
    response without Content-Length is marked by closing the connection (RFC 9112, 6.3)."""

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
    """The protocol of one connection. `max_connections` is set in the subclass that
    `bounded_protocol` returns."""

    max_connections: int = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = False
        self._in_message = False
        self._messages = 0
        # Bytes of framing and trailers received since the last byte of the current body.
        self._framing_bytes = 0
        # True while the parser reads the headers that `_reframe` inserted, or the body after them.
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
        """Close the connection at once, because the server stops."""
        self.stopped = True
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        message = self._messages if self._in_message and not self._in_head else None
        self._framing_bytes += len(data)
        self._parse(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT_BYTES:
                self._refuse(_head_too_large())
            elif self._deadline is None:
                self._set_deadline(HEAD_TIMEOUT_S)
        elif message == self._messages and self._in_message:  # after this message's headers
            self._check_framing_size()

    def on_message_begin(self) -> None:
        if self._reframed:
            return
        super().on_message_begin()
        self._in_message = self._in_head = True
        self._messages += 1
        self._head_bytes = self._framing_bytes = 0
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
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and self._framing():
            return  # the body of this request follows
        self._in_message = self._reframed = False
        super().on_message_complete()
        if self.cycle.response_complete:  # the refused body has ended: the connection is idle
            self._set_deadline(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """Limit the time for the rest of a body that the application did not read to LINGER_S. The
        body of the next pipelined request is not limited by this deadline."""
        super().on_response_complete()
        if self._in_message and not self._in_head and self.cycle.response_complete:
            self._set_deadline(LINGER_S)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _check_framing_size(self) -> None:
        if self._framing_bytes <= HEAD_LIMIT_BYTES:
            return
        if self.cycle.response_started:
            self.transport.abort()
        else:
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        self._refuse(_invalid("the request is not valid HTTP"))

    def _parse(self, data: bytes) -> None:
        """Feed the parser. If a request asks for an upgrade, the parser stops after the headers,
        but a server that does not support the upgrade must still read the body (RFC 9110, 7.8)."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except HttpParserError as error:
                found = error.__context__  # the exception that a callback raised
                if isinstance(found, ServiceError):
                    self._refuse(found)
                else:
                    self.send_400_response("")
                return
            except HttpParserUpgrade as upgrade:
                data = self._reframe(data[upgrade.args[0] :])

    def _reframe(self, rest: bytes) -> bytes:
        """Return the bytes to feed to the parser after it stopped at an upgrade request.

        `rest`: the bytes received after the headers of that request.

        If the request has a body, the result is `rest` preceded by generated headers with the
        original Content-Length and Transfer-Encoding, so that the parser reads the body as part of
        one message. Otherwise the result is `rest`.
        """
        framing = self._framing()
        if not framing:
            return rest
        self._reframed = True
        fields = b"".join(b"%b: %b\r\n" % field for field in framing)
        return b"POST / HTTP/1.1\r\n%b\r\n%b" % (fields, rest)

    def _framing(self) -> list[tuple[bytes, bytes]]:
        return [field for field in self.headers if field[0] in FRAMING]

    def _refuse(self, error: ServiceError) -> None:
        """Send an error response without calling the application, and close the connection."""
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
    """Raise HeadTooLarge if the URL and the headers together exceed the size limit, even if they
    arrived in one read."""
    if len(url) + sum(len(name) + len(value) + 4 for name, value in headers) > HEAD_LIMIT_BYTES:
        raise _head_too_large()


def check_host(version: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise InvalidRequest for several Host headers, an invalid Host header, or none; HTTP/1.0
    requests need none (RFC 9112, 3.2)."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise _invalid(f"the request has {len(hosts)} Host lines; send exactly one")
    if not hosts and version != "1.0":
        raise _invalid(f"the request has no Host line; HTTP/{version} requires one")
    if hosts and HOST.fullmatch(hosts[0]) is None:
        raise _invalid("the Host line is not valid; send a host name or an address")


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"the request's head is over {HEAD_LIMIT_BYTES} bytes")


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_http")


def bounded_protocol(max_connections: int) -> type[BoundedProtocol]:
    """Return a protocol class that accepts at most `max_connections` connections."""
    return type("Bounded", (BoundedProtocol,), {"max_connections": max_connections})
