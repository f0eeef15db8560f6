"""Sends the events of a run to the client: as a stream, or collected into one answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, TypeVar

from starlette.types import Receive, Send

from penstock.api.codecs.dialect import StreamEncoder
from penstock.api.http.cancel_scope import CancelScope, ScopeCancelled
from penstock.api.http.errors import ClientDisconnected
from penstock.api.observability.request_record import (
    RequestRecord,
    current_record,
    record_prompt_tokens,
)
from penstock.dialog import Event, RunEnded, RunFailed, RunStarted
from penstock.dialog.fold import Answer, FailedRun, Fold

STREAM_HEAD: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

LAST: Final = frozenset((RunEnded, RunFailed))

_T = TypeVar("_T")


async def fold_run(events: AsyncGenerator[Event, None]) -> Answer:
    """Consume the events of a run and return the finished answer. Raises FailedRun, and the errors
    of the run."""
    fold = Fold()
    async with aclosing(events):
        async for event in events:
            if isinstance(event, RunStarted):
                record_prompt_tokens(event.prompt_tokens)
            fold.add(event)
    return fold.answer


async def cancel_on_disconnect(work: Coroutine[Any, Any, _T], receive: Receive) -> _T:
    """Return the result of `work`. If the client disconnects, cancel `work` and raise
    ClientDisconnected."""
    with _DisconnectWatch(receive):
        return await work


class _DisconnectWatch:
    """Context manager that cancels its block when the client disconnects; the block then raises
    ClientDisconnected. If the request has no connection object, a task waits for ASGI's disconnect
    message."""

    def __init__(self, receive: Receive) -> None:
        record = current_record.get()
        self._connection = record.connection if record is not None else None
        self._receive = receive
        self._task: asyncio.Future[None] | None = None
        self._block = CancelScope()

    def drop(self) -> None:
        """Cancel the block as if the client had disconnected."""
        self._block.cancel()

    def stop(self) -> None:
        """Ignore a disconnect from now on: the client has the whole answer."""
        if self._connection is not None:
            self._connection.when_gone(None)
        if self._task is not None:
            self._task.remove_done_callback(self._gone)

    def __enter__(self) -> None:
        self._block.__enter__()
        if self._connection is not None:
            self._connection.when_gone(self._block.cancel)
        else:
            self._task = asyncio.ensure_future(_disconnect(self._receive))
            self._task.add_done_callback(self._gone)

    def _gone(self, _: asyncio.Future[None]) -> None:
        self._block.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            self._connection.when_gone(None)
        if self._task is not None:
            self._task.cancel()
        try:
            self._block.__exit__(kind, error, trace)
        except ScopeCancelled:
            raise ClientDisconnected from None


class EventStream:
    """Sends one answer as a stream of events.

    The status and the headers are sent with the first frame or the first keep-alive; an error
    before that is sent as an HTTP error status. A client that reads nothing for `stall_timeout_s`
    seconds is dropped; `abort` closes its connection. While the send buffer is full, no event is
    taken from the run, and the engine's outputs are merged in their queue.

    `keep_alive_s`: seconds without a frame after which a keep-alive is sent.
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
        self._loop = asyncio.get_running_loop()
        self._sent_s = self._loop.time()
        self._sending = False
        self._opened = False  # the headers are sent; frames may be written directly
        self._keeping: asyncio.Task[None] | None = None

    async def run(self, events: AsyncGenerator[Event, None], receive: Receive) -> None:
        """Send all events of a run. Raises ClientDisconnected, the errors of the run, and FailedRun
        if the run fails before the headers are sent."""
        self._watch = _DisconnectWatch(receive)
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        try:
            with self._watch:
                await self._send_all(events)
        finally:
            self._timer.cancel()
            if self._keeping is not None:
                self._keeping.cancel()

    @property
    def _tick_s(self) -> float:
        return min(self._keep_alive_s, self._stall_timeout_s)

    async def _send_all(self, events: AsyncGenerator[Event, None]) -> None:
        encode, connection, now_s = self._encoder.encode, self._record.connection, self._loop.time
        async with aclosing(events):
            async for event in events:
                if type(event) in LAST:
                    await self._send_last(event)
                    return
                if isinstance(event, RunStarted):
                    record_prompt_tokens(event.prompt_tokens)
                frames = encode(event)
                if not frames:
                    continue
                if self._opened and connection is not None and connection.ready:
                    connection.write(frames)  # bypasses ASGI and the middlewares
                    self._sent_s = now_s()
                else:
                    await self._send_frames(frames)
        raise AssertionError("a run ends with RunEnded or RunFailed")

    async def _send_last(self, event: Event) -> None:
        if isinstance(event, RunFailed):
            self._record.outcome = "error"
            if self._record.encoder is None:
                raise FailedRun(event)
            event = self._record.field_paths.rewrite_failure(event)
        await self._send_frames(self._encoder.encode(event), more=False)
        self._watch.stop()

    async def _send_frames(self, frames: bytes, *, more: bool = True) -> None:
        if self._keeping is not None and self._keeping is not asyncio.current_task():
            await self._keeping
        self._sent_s = self._loop.time()
        self._sending = True
        if self._record.encoder is None:
            self._record.encoder = self._encoder
            start = {"type": "http.response.start", "status": 200, "headers": list(STREAM_HEAD)}
            await self._send(start)
        await self._send({"type": "http.response.body", "body": frames, "more_body": more})
        self._sending = False
        self._opened = True

    async def _keep_alive(self) -> None:
        self._opened = False  # event frames wait until the keep-alive is sent
        await self._send_frames(self._encoder.keep_alive())
        self._keeping = None

    def _tick(self) -> None:
        """Drop a client that reads nothing; send a keep-alive if nothing was sent for
        `keep_alive_s`."""
        idle_s = self._loop.time() - self._sent_s
        if self._sending and idle_s >= self._stall_timeout_s:
            if self._abort is not None:
                self._abort()
            self._watch.drop()
            return
        due_s = self._keep_alive_s if not self._sending else self._stall_timeout_s
        if not self._sending and idle_s >= due_s:
            self._keeping = asyncio.ensure_future(self._keep_alive())
            idle_s = 0.0
        self._timer = self._loop.call_later(
            max(min(due_s - idle_s, self._tick_s), 0.001), self._tick
        )


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
