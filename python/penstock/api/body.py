"""Request bodies: bounded while they arrive, never buffered beyond the bound."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from penstock.api.cutoff import CutOff, Cuttable
from penstock.api.errors import ClientGone, RequestTimeout
from penstock.api.record import RequestRecord
from penstock.base.errors import Overloaded, PayloadTooLarge

# All bodies that are being received may hold this many times the limit of one of them.
BUDGET_BODIES = 8


class BodyReader:
    """Reads whole bodies of at most `limit_bytes`.

    `stall_timeout_s`: how long a client may send nothing of an unfinished body.
    """

    def __init__(self, limit_bytes: int, stall_timeout_s: float) -> None:
        self._limit_bytes = limit_bytes
        self._stall_timeout_s = stall_timeout_s
        self._held_bytes = 0

    async def read(self, record: RequestRecord, receive: Receive) -> bytes:
        """The body. Raises PayloadTooLarge as soon as it is known to be too large, whatever
        Content-Length said; Overloaded if too many are being received; RequestTimeout; ClientGone.
        """
        if (record.content_length or 0) > self._limit_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            while True:
                chunk, more = await self._receive(receive)
                size += len(chunk)
                self._held_bytes += len(chunk)
                if size > self._limit_bytes:
                    raise self._too_large()
                if self._held_bytes > BUDGET_BODIES * self._limit_bytes:
                    raise Overloaded("too many large requests are being received")
                chunks.append(chunk)
                if not more:
                    return b"".join(chunks)
        finally:
            record.body_bytes = size
            self._held_bytes -= size

    async def _receive(self, receive: Receive) -> tuple[bytes, bool]:
        block = Cuttable()
        timer = asyncio.get_running_loop().call_later(self._stall_timeout_s, block.cut)
        try:
            with block:
                message = await receive()
        except CutOff:
            raise RequestTimeout("the body did not arrive in time") from None
        finally:
            timer.cancel()
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message.get("body", b""), message.get("more_body", False)

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"the body is larger than {self._limit_bytes} bytes, the most this server takes"
        )
