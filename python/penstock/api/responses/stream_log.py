"""The stream of a background response: written down by its owner, read again by any process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

import orjson

from penstock.api.codecs.openai_envelope import DONE
from penstock.api.codecs.responses import TERMINAL, Resource, ResponseStream, closing_frame
from penstock.base.errors import ServiceError
from penstock.dialog import Event, RunStarted
from penstock.store.records import EventChunk

if TYPE_CHECKING:
    from penstock.store import StoredResponse
    from penstock.store.response_events import ResponseEvents

log = logging.getLogger(__name__)

READ_INTERVAL_S: Final = 0.1
RETRY_INTERVAL_S: Final = 0.5
# How long the last events may come after the status that they tell of.
END_TIMEOUT_S: Final = 2.0
FRAME_END: Final = b"\n\n"


class StreamLog:
    """Frames that wait to be written down, and where they belong. Frames that were written are
    those of the client's own stream, byte for byte."""

    def __init__(self, events: ResponseEvents, resource: Resource) -> None:
        self._events = events
        self._id = resource.identity.id
        self._encoder = ResponseStream(resource)
        self._waiting = b""
        self._number = 0
        self._begun = False
        self._writing = asyncio.Lock()

    def add(self, event: Event) -> bool:
        """Take one event in; whether it is the one that begins the stream. Those before it are told
        as the HTTP answer."""
        begins = not self._begun and isinstance(event, RunStarted)
        self._begun |= begins
        if self._begun:
            self._waiting += self._encoder.encode(event)
        return begins

    async def flush(self) -> None:
        """Write down what waits. What cannot be written now waits on."""
        async with self._writing:
            frames = self._waiting
            if not frames:
                return
            count = frames.count(FRAME_END) - frames.endswith(DONE)
            chunk = EventChunk(self._number, self._number + count, frames)
            try:
                await self._events.append(self._id, chunk)
            except ServiceError as error:
                log.warning("stream of response %s: %s", self._id, error.message)
                return
            self._number = chunk.following
            self._waiting = self._waiting[len(frames) :]

    async def finish(self) -> None:
        """Write down all that waits, however long that takes: nothing comes after it that would."""
        await self.flush()
        while self._waiting:
            await asyncio.sleep(RETRY_INTERVAL_S)
            await self.flush()


async def replayed(
    events: ResponseEvents,
    get: Callable[[str], Awaitable[StoredResponse | None]],
    id: str,
    wanted: int,
    is_written: Callable[[], bool],
) -> AsyncGenerator[bytes, None]:
    """The frames from the event with the number `wanted` on, as they are written down; nothing
    (`b""`) while nothing new is. Where the owner died before the last one, it is made from the
    stored resource, with a number that the reader has not seen; where the response is deleted
    meanwhile, the stream ends; while the store cannot be read, it waits. `is_written`: this
    process still writes the stream down."""
    number = 0
    ended_s: float | None = None
    while True:
        try:
            chunks, stored = await events.read(id, number), await get(id)
        except ServiceError as error:
            log.warning("stream of response %s: %s", id, error.message)
            yield b""
            await asyncio.sleep(RETRY_INTERVAL_S)
            continue
        for chunk in chunks:
            number = chunk.following
            frames = _from(chunk, wanted)
            if frames:
                yield frames
            if chunk.frames.endswith(DONE):
                return
        if stored is None:
            yield DONE
            return
        if stored.status in TERMINAL and not is_written():
            ended_s = time.monotonic() if ended_s is None else ended_s
            if time.monotonic() - ended_s > END_TIMEOUT_S:
                yield closing_frame(orjson.loads(stored.body), max(number, wanted)) + DONE
                return
        yield b""
        await asyncio.sleep(READ_INTERVAL_S)


def _from(chunk: EventChunk, wanted: int) -> bytes:
    """The frames of a chunk from a number on; at its end, that of the end."""
    skipped = min(max(wanted - chunk.first, 0), chunk.following - chunk.first)
    return FRAME_END.join(chunk.frames.split(FRAME_END)[skipped:])
