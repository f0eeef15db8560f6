"""Request bodies: bounded while they arrive, never buffered beyond the bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from starlette.types import Message, Receive

from penstock.api.http.cancel_scope import CancelScope, ScopeCancelled
from penstock.api.http.errors import ClientDisconnected, RequestTimeout
from penstock.api.observability.request_record import RequestRecord
from penstock.base.errors import Overloaded, PayloadTooLarge

# All bodies that are being received may hold this many times the limit of one of them.
BUDGET_BODIES = 8
# A body up to this share of the limit is taken whatever the others hold: a few clients who send
# large ones slowly shut nobody else out.
SMALL_BODY_SHARE = 256
# A client may send slowly, but not byte by byte for ever.
MIN_BYTES_PER_S = 1024


class BodyReader:
    """Reads bodies of at most `limit_bytes`.

    `stall_timeout_s`: how long a client may send nothing of an unfinished body, and how much longer
    the whole may take than at `MIN_BYTES_PER_S`.
    """

    def __init__(self, limit_bytes: int, stall_timeout_s: float) -> None:
        self._limit_bytes = limit_bytes
        self._stall_timeout_s = stall_timeout_s
        self._held_bytes = 0

    async def read(self, record: RequestRecord, receive: Receive) -> bytes:
        """The body. Raises as `kept`."""
        return b"".join([chunk async for chunk in self.kept(record, receive)])

    async def kept(self, record: RequestRecord, receive: Receive) -> AsyncGenerator[bytes, None]:
        """The body as it arrives, for who keeps all of it: counted until the generator is closed.
        Raises what `stream` does, and Overloaded for one that is not small if too many are being
        received."""
        held_bytes = 0
        try:
            async for chunk in self.stream(record, receive):
                held_bytes += len(chunk)
                self._held_bytes += len(chunk)
                if self._is_over_budget(held_bytes):
                    raise Overloaded("too many large requests are being received")
                yield chunk
        finally:
            self._held_bytes -= held_bytes

    def _is_over_budget(self, body_bytes: int) -> bool:
        """Whether a body of which so much has come is one too many."""
        small = body_bytes <= self._limit_bytes // SMALL_BODY_SHARE
        return not small and self._held_bytes > BUDGET_BODIES * self._limit_bytes

    async def stream(self, record: RequestRecord, receive: Receive) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises PayloadTooLarge as soon as it is known to be too large,
        whatever Content-Length said; RequestTimeout; ClientDisconnected."""
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
        if connection is not None and connection.received:  # as most are: nothing to wait for
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
            f"the body is larger than {self._limit_bytes} bytes, the most this server takes"
        )
