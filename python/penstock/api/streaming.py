"""Answers a request with the events of its run: as a stream of frames, or folded into JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final, TypeVar

from starlette.types import Receive, Send

from penstock.api.buffer import EventBuffer
from penstock.api.codecs.dialect import StreamEncoder
from penstock.api.errors import ClientGone
from penstock.api.record import RequestRecord
from penstock.dialog import Event, RunEnded, RunFailed
from penstock.dialog.fold import Answer, FailedRun, Fold

STREAM_HEAD: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_T = TypeVar("_T")


async def fold_run(events: AsyncGenerator[Event, None]) -> Answer:
    """The finished answer of a run. Raises FailedRun, or what the run raises."""
    fold = Fold()
    async with aclosing(events):
        async for event in events:
            fold.add(event)
    return fold.answer


async def unless_gone(work: Coroutine[Any, Any, _T], receive: Receive) -> _T:
    """The result of `work`; cancels it and raises ClientGone when the client disconnects."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _end(task, watch)


class EventStream:
    """One streamed answer.

    The head goes out with the first frame, or with the first keep-alive: until then an error is
    still an HTTP status of its own. A client that reads nothing for `stall_timeout_s` is dropped;
    `abort` cuts its connection.
    """

    def __init__(
        self,
        record: RequestRecord,
        encoder: StreamEncoder,
        send: Send,
        *,
        keep_alive_s: float,
        stall_timeout_s: float,
        abort: Callable[[], None] | None = None,
    ) -> None:
        self._record = record
        self._encoder = encoder
        self._send = send
        self._keep_alive_s = keep_alive_s
        self._stall_timeout_s = stall_timeout_s
        self._abort = abort
        self._buffer = EventBuffer()
        self._loop = asyncio.get_running_loop()
        self._sent_s = self._loop.time()
        self._sending = False
        self._stalled = False

    async def run(self, events: AsyncGenerator[Event, None], receive: Receive) -> None:
        """Send all of a run. Raises ClientGone, FailedRun before the head is out, and whatever
        the run raises."""
        self._sender = asyncio.current_task()
        pump = asyncio.ensure_future(self._pump(events))
        watch = asyncio.ensure_future(_disconnect(receive))
        for task in (pump, watch):
            task.add_done_callback(lambda _: self._buffer.close())
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        try:
            await self._send_all(pump, watch)
        except asyncio.CancelledError:
            if self._stalled:
                raise ClientGone from None
            raise
        finally:
            self._timer.cancel()
            await _end(pump, watch)

    @property
    def _tick_s(self) -> float:
        return min(self._keep_alive_s, self._stall_timeout_s)

    async def _pump(self, events: AsyncGenerator[Event, None]) -> None:
        async with aclosing(events):
            async for event in events:
                await self._buffer.put(event)

    async def _send_all(self, pump: asyncio.Task[None], watch: asyncio.Task[None]) -> None:
        while True:
            batch = await self._buffer.take()
            if watch.done():
                raise ClientGone
            if not batch and pump.done():
                pump.result()
                raise AssertionError("a run ends with RunEnded or RunFailed")
            if await self._send_batch(batch):
                return

    async def _send_batch(self, batch: list[Event]) -> bool:
        """Send the frames of some events; whether they were the last ones."""
        last = batch[-1] if batch else None
        if isinstance(last, RunFailed):
            self._record.outcome = "error"
            if self._record.encoder is None:
                raise FailedRun(last)
        frames = b"".join([self._encoder.encode(event) for event in batch])
        if not batch:
            frames = self._encoder.keep_alive()
        ended = isinstance(last, RunEnded | RunFailed)
        if frames:
            await self._send_frames(frames, more=not ended)
        return ended

    async def _send_frames(self, frames: bytes, *, more: bool) -> None:
        self._sent_s = self._loop.time()
        self._sending = True
        if self._record.encoder is None:
            self._record.encoder = self._encoder
            start = {"type": "http.response.start", "status": 200, "headers": list(STREAM_HEAD)}
            await self._send(start)
        await self._send({"type": "http.response.body", "body": frames, "more_body": more})
        self._sending = False

    def _tick(self) -> None:
        """Notice that sending is stuck, or that nothing was sent for a while."""
        idle_s = self._loop.time() - self._sent_s
        if self._sending and idle_s >= self._stall_timeout_s:
            assert self._sender is not None
            self._stalled = True
            if self._abort is not None:
                self._abort()
            self._sender.cancel()
            return
        due_s = self._keep_alive_s if not self._sending else self._stall_timeout_s
        if not self._sending and idle_s >= due_s:
            self._buffer.wake()
            idle_s = 0.0
        self._timer = self._loop.call_later(
            max(min(due_s - idle_s, self._tick_s), 0.001), self._tick
        )


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs, and wait until it has let go of what it holds."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
