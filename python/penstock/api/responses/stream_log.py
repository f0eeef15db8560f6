"""The recorded stream of a background response: the owner of the response writes it to the store,
any API process can replay it."""

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
# Seconds after the final status of a response within which its last events may still be stored.
END_TIMEOUT_S: Final = 2.0
FRAME_END: Final = b"\n\n"


class StreamLog:
    """Writes the frames of one response's stream to the store: the same bytes that its client
    receives."""

    def __init__(self, events: ResponseEvents, resource: Resource) -> None:
        self._events = events
        self._id = resource.identity.id
        self._encoder = ResponseStream(resource)
        self._waiting = b""
        self._next_number = 0
        self._started = False
        self._writing = asyncio.Lock()

    def add(self, event: Event) -> bool:
        """Add the frames of an event. Returns True for the event that starts the stream. Earlier
        events belong to the HTTP response and are not recorded."""
        starts = not self._started and isinstance(event, RunStarted)
        self._started |= starts
        if self._started:
            self._waiting += self._encoder.encode(event)
        return starts

    async def flush(self) -> None:
        """Write the waiting frames. If the store fails, log the error and keep the frames
        waiting."""
        async with self._writing:
            frames = self._waiting
            if not frames:
                return
            count = frames.count(FRAME_END) - frames.endswith(DONE)
            chunk = EventChunk(self._next_number, self._next_number + count, frames)
            try:
                await self._events.append(self._id, chunk)
            except ServiceError as error:
                log.warning("stream of response %s: %s", self._id, error.message)
                return
            self._next_number = chunk.following
            self._waiting = self._waiting[len(frames) :]

    async def finish(self) -> None:
        """Write all waiting frames. If the store fails, retry until they are stored."""
        await self.flush()
        while self._waiting:
            await asyncio.sleep(RETRY_INTERVAL_S)
            await self.flush()


async def replay_stream(
    events: ResponseEvents,
    get: Callable[[str], Awaitable[StoredResponse | None]],
    id: str,
    start: int,
    is_written: Callable[[], bool],
) -> AsyncGenerator[bytes, None]:
    """Yield the stored frames of a response from event number `start` on, as they are stored, and
    b"" after each read of the store.

    If the owner died before it stored the last event, a last event is generated from the stored
    response, with a number that the reader has not seen. If the response is deleted, the stream
    ends. If the store cannot be read, the replay waits and retries.

    `get`: returns the stored response with an id, or None.
    `is_written`: returns whether this process is still recording the stream.
    """
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
            frames = _frames_from(chunk, start)
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
                yield closing_frame(orjson.loads(stored.body), max(number, start)) + DONE
                return
        yield b""
        await asyncio.sleep(READ_INTERVAL_S)


def _frames_from(chunk: EventChunk, start: int) -> bytes:
    """Return the frames of a chunk from event number `start` on. If the chunk ends with the end
    frame of the stream, the end frame is always included."""
    skipped = min(max(start - chunk.first, 0), chunk.following - chunk.first)
    return FRAME_END.join(chunk.frames.split(FRAME_END)[skipped:])
