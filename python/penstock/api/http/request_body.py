"""Reads request bodies with limits on size, time and the memory of all bodies together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from starlette.types import Message, Receive

from penstock.api.http.cancel_scope import CancelScope, ScopeCancelled
from penstock.api.http.errors import ClientDisconnected, RequestTimeout
from penstock.api.observability.request_record import RequestRecord
from penstock.base.errors import Overloaded, PayloadTooLarge

# The budget of all bodies in memory is this multiple of the size limit of one body.
BUDGET_BODIES = 8
# Bodies up to 1 / SMALL_BODY_SHARE of the limit are exempt from the budget, so that a few clients
# that send large bodies slowly cannot block all others.
SMALL_BODY_SHARE = 256
# The lowest average rate of a body, so that a client cannot hold a request open by sending single
# bytes.
MIN_BYTES_PER_S = 1024


class BodyReader:
    """Reads request bodies of at most `limit_bytes`.

    `stall_timeout_s`: the longest pause between two pieces of a body. The whole body must arrive
    within this time plus its size divided by MIN_BYTES_PER_S.
    """

    def __init__(self, limit_bytes: int, stall_timeout_s: float) -> None:
        self._limit_bytes = limit_bytes
        self._stall_timeout_s = stall_timeout_s
        self._buffered_bytes = 0

    async def read(self, record: RequestRecord, receive: Receive) -> bytes:
        """Return the whole body. Raises the exceptions of `stream_buffered`."""
        return b"".join([chunk async for chunk in self.stream_buffered(record, receive)])

    async def stream_buffered(
        self, record: RequestRecord, receive: Receive
    ) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives, for a caller that keeps the whole body in memory: the body
        counts against the budget until the generator is closed. Raises Overloaded if the budget is
        exhausted and the body is not small, and the exceptions of `stream`."""
        body_bytes = 0
        try:
            async for chunk in self.stream(record, receive):
                body_bytes += len(chunk)
                self._buffered_bytes += len(chunk)
                if self._is_over_budget(body_bytes):
                    raise Overloaded("too many large requests are being received")
                yield chunk
        finally:
            self._buffered_bytes -= body_bytes

    def _is_over_budget(self, body_bytes: int) -> bool:
        """Tell whether a body that has `body_bytes` so far exceeds the memory budget of all
        bodies."""
        small = body_bytes <= self._limit_bytes // SMALL_BODY_SHARE
        return not small and self._buffered_bytes > BUDGET_BODIES * self._limit_bytes

    async def stream(self, record: RequestRecord, receive: Receive) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises PayloadTooLarge as soon as Content-Length or the
        bytes received exceed the limit, RequestTimeout if the body is too slow, and
        ClientDisconnected."""
        if (record.content_length or 0) > self._limit_bytes:
            raise self._too_large()
        record.body_bytes = 0
        began_s = asyncio.get_running_loop().time()
        more = True
        while more:
            due_s = began_s + self._stall_timeout_s + record.body_bytes / MIN_BYTES_PER_S
            chunk, more = await self._receive(record, receive, due_s)
            record.body_bytes += len(chunk)
            if record.body_bytes > self._limit_bytes:
                raise self._too_large()
            yield chunk

    async def _receive(
        self, record: RequestRecord, receive: Receive, due_s: float
    ) -> tuple[bytes, bool]:
        connection = record.connection
        if connection is not None and connection.received:  # the usual case: no wait, no timer
            message = await receive()
        else:
            message = await self._receive_in_time(receive, due_s)
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        return message.get("body", b""), message.get("more_body", False)

    async def _receive_in_time(self, receive: Receive, due_s: float) -> Message:
        block = CancelScope()
        loop = asyncio.get_running_loop()
        timer = loop.call_at(min(due_s, loop.time() + self._stall_timeout_s), block.cancel)
        try:
            with block:
                return await receive()
        except ScopeCancelled:
            raise RequestTimeout("the body did not arrive in time") from None
        finally:
            timer.cancel()

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"the body is larger than {self._limit_bytes} bytes, the limit of this server"
        )
