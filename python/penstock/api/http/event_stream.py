"""Answers a request with the events of its run: as a stream of frames, or folded into JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.types import Receive, Send

from penstock.api.codecs.dialect import Numbered, StreamEncoder
from penstock.api.http.cancel_scope import CancelScope, ScopeCancelled
from penstock.api.http.errors import ClientDisconnected
from penstock.api.observability.request_record import (
    RequestRecord,
    current_record,
    record_prompt_tokens,
)
from penstock.dialog import Event, RunEnded, RunFailed, RunStarted
from penstock.dialog.fold import Answer, FailedRun, Fold
from penstock.dialog.outlet import Delta

if TYPE_CHECKING:
    from penstock._native import Gate

STREAM_HEAD: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

LAST: Final = frozenset((RunEnded, RunFailed))

_T = TypeVar("_T")


async def fold_run(events: AsyncGenerator[Event, None]) -> Answer:
    """The finished answer of a run. Raises FailedRun, or what the run raises."""
    fold = Fold()
    async with aclosing(events):
        async for event in events:
            if isinstance(event, RunStarted):
                record_prompt_tokens(event.prompt_tokens)
            fold.add(event)
    return fold.answer


async def cancel_on_disconnect(work: Coroutine[Any, Any, _T], receive: Receive) -> _T:
    """The result of `work`; cancels it and raises ClientDisconnected when the client
    disconnects."""
    with _DisconnectWatch(receive):
        return await work


class _DisconnectWatch:
    """Cuts the block off, which then ends with ClientDisconnected, when the client is gone. Where
    only
    ASGI can tell that, a task waits for it."""

    def __init__(self, receive: Receive) -> None:
        record = current_record.get()
        self._connection = record.connection if record is not None else None
        self._receive = receive
        self._task: asyncio.Future[None] | None = None
        self._block = CancelScope()

    def drop(self) -> None:
        """Take the client as gone."""
        self._block.cancel()

    def __enter__(self) -> None:
        self._block.__enter__()
        if self._connection is not None:
            self._connection.when_gone(self._block.cancel)
        else:
            self._task = asyncio.ensure_future(_disconnect(self._receive))
            self._task.add_done_callback(lambda _: self._block.cancel())

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
    """One streamed answer; the outlet (`dialog.Outlet`) of its run.

    The head goes out with the first frame, or with the first keep-alive: until then an error is
    still an HTTP status of its own. A client that reads nothing for `stall_timeout_s` is dropped;
    `abort` cuts its connection. Nothing waits here: while the connection takes no more, no event is
    asked for, and what the engine makes meanwhile is joined at its end of the run.
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
        self._opened = False  # the head is out, and frames may be written at once
        self._gate: Gate | None = None
        self._numbered: Numbered | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def run(self, events: AsyncGenerator[Event, None], receive: Receive) -> None:
        """Send all of a run. Raises ClientDisconnected, FailedRun before the head is out, and
        whatever
        the run raises."""
        self._watch = _DisconnectWatch(receive)
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        try:
            with self._watch:
                await self._send_all(events)
        finally:
            self._timer.cancel()
            if self._keeping is not None:
                self._keeping.cancel()
            if self._gate is not None:
                self._gate.close()

    @property
    def ready(self) -> bool:
        """Whether the head is out, and the connection takes more."""
        connection = self._record.connection
        return self._opened and connection is not None and connection.ready

    def send(self, deltas: Sequence[Delta]) -> None:
        """Send deltas while `ready`."""
        for delta in deltas:
            self._write(self._encoder.encode(delta))

    def gate(self, choice: int, part: int) -> Gate | None:
        """A gate to the connection, in the dialect's frames."""
        around = self._encoder.around(choice, part)
        if around is None or not self.ready:
            return None
        connection = self._record.connection
        assert connection is not None
        self._gate, self._numbered = connection.gate(around), around.numbered
        return self._gate

    def passed(self, choice: int, part: int, text: str) -> None:
        """The frames are out; only their numbers matter for those that follow."""
        if self._numbered is not None:
            assert self._gate is not None and self._gate.number is not None
            self._numbered.go_on(self._gate.number)

    @property
    def _tick_s(self) -> float:
        return min(self._keep_alive_s, self._stall_timeout_s)

    async def _send_all(self, events: AsyncGenerator[Event, None]) -> None:
        encode = self._encoder.encode
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
                if self.ready:
                    self._write(frames)
                else:
                    await self._send_frames(frames)
        raise AssertionError("a run ends with RunEnded or RunFailed")

    def _write(self, frames: bytes) -> None:
        connection = self._record.connection
        assert connection is not None
        if frames:  # an empty piece is the end of an answer
            connection.write(frames)
            self._sent_s = self._loop.time()

    async def _send_last(self, event: Event) -> None:
        if isinstance(event, RunFailed):
            self._record.outcome = "error"
            if self._record.encoder is None:
                raise FailedRun(event)
            event = self._record.field_paths.rewrite_failure(event)
        await self._send_frames(self._encoder.encode(event), more=False)

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
        self._opened = False  # frames that come meanwhile wait for this one
        if self._gate is not None:
            self._gate.close()
        await self._send_frames(self._encoder.keep_alive())
        self._keeping = None

    def _tick(self) -> None:
        """Notice that sending is stuck, or that nothing was sent for a while."""
        passed_s = 0.0 if self._gate is None else self._gate.written_s
        idle_s = self._loop.time() - max(self._sent_s, passed_s)
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
