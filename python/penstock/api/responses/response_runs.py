"""The responses that this API process works on: their rows in the store, and the background ones,
which outlive their clients.

A row that is unfinished belongs to the process whose heartbeat it carries; one without a heartbeat
is failed by whoever looks at it next, so that nothing stays in progress for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from penstock.api.codecs.responses import TERMINAL, Resource, with_final_status
from penstock.api.http.errors import rewrite_error_field
from penstock.api.observability.request_record import record_prompt_tokens, server_stopped
from penstock.api.responses.response_row import ResponseRow
from penstock.api.responses.stream_log import StreamLog, replayed
from penstock.base.errors import ServiceError, Unavailable
from penstock.base.ids import new_id
from penstock.dialog import (
    Event,
    Message,
    RunEnded,
    RunFailed,
    RunStarted,
    Usage,
)

if TYPE_CHECKING:
    from penstock.store import Store, StoredResponse
    from penstock.store.lazy_store import LazyStore

log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.25
HEARTBEAT_INTERVAL_S: Final = 5.0
# An owner is dead whose heartbeat is so old, and did not change while this process watched it for
# so long: clocks are put forward, machines suspended, and those of two machines differ.
STALE_S: Final = 30
WATCHED_S: Final = 3 * HEARTBEAT_INTERVAL_S
# How long a cancelled response of another process is waited for.
CANCEL_TIMEOUT_S: Final = 2.0
RETRY_INTERVAL_S: Final = 1.0


class ResponseRuns:
    """One for an API process. All methods are called from its event loop."""

    def __init__(self, store: Store | LazyStore) -> None:
        self._responses = store.responses
        self._events = store.response_events
        self._owner = new_id("api_")
        self._detached: dict[str, asyncio.Task[None]] = {}
        self._logs: set[StreamLog] = set()
        self._written: set[str] = set()  # the ids of streams that are not wholly written down yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._rows: set[ResponseRow] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._others = _Heartbeats()
        self._closed = False

    def row(
        self, resource: Resource, turn: tuple[Message, ...], previous_id: str | None
    ) -> ResponseRow:
        """The row of a response that is to be stored."""
        return ResponseRow(self._responses, resource, turn, self._owner, previous_id)

    async def follow(
        self, events: AsyncGenerator[Event, None], resource: Resource, row: ResponseRow | None
    ) -> AsyncGenerator[Event, None]:
        """The events of a run, with the resource fed by them, and its row written before the event
        that it tells of goes out. Errors name fields as the client wrote them. Closed early, the
        response is cancelled, unless it has ended."""
        names = resource.identity.names
        try:
            async with aclosing(events) as run:
                async for event in run:
                    if isinstance(event, RunFailed):
                        event = names.rewrite_failure(event)
                    if isinstance(event, RunStarted):
                        record_prompt_tokens(event.prompt_tokens)
                    resource.add(event)
                    if row is not None:
                        await self._write(row, event)
                    yield event
        except (asyncio.CancelledError, GeneratorExit):
            if resource.ended:
                pass  # its end may be in the store already, and is what it stays
            elif self._closed or server_stopped():
                resource.fail(_stopped())
            else:
                resource.cancel()
            raise
        except ServiceError as error:
            told = rewrite_error_field(error, names)
            resource.fail(told)
            raise told from error.__cause__
        except Exception:
            resource.fail(ServiceError("internal error"))
            raise
        finally:
            if row is not None:
                self._rows.discard(row)
                if row.is_open:
                    await self._settle(row)

    async def follow_whole(
        self, events: AsyncGenerator[Event, None], resource: Resource, row: ResponseRow | None
    ) -> AsyncGenerator[Event, None]:
        """As `follow`, for a response that nobody can ask for before it is complete: its row is
        written once, at the end."""
        async with aclosing(self.follow(events, resource, None)) as run:
            async for event in run:
                if row is not None and isinstance(event, RunEnded):
                    await row.create()
                yield event

    def detach(
        self, events: AsyncGenerator[Event, None], resource: Resource, *, logged: bool
    ) -> AsyncGenerator[Event, None]:
        """Let a run go on whatever becomes of its client. The events are for one reader, who may
        leave. `logged`: its stream is written down, for `replay`. Raises Unavailable when it is
        closed."""
        if self._closed:
            raise _stopped()
        reader = _DetachedEvents()
        stream = StreamLog(self._events, resource) if logged else None
        if logged:
            self._written.add(resource.identity.id)
        work = self._drive(events, resource, reader, stream)
        task = self._detached[resource.identity.id] = self._spawn(work)
        task.add_done_callback(lambda _: self._forget(resource.identity.id, reader))
        return reader.events()

    def replay(self, id: str, wanted: int) -> AsyncGenerator[bytes, None]:
        """The stream of a response from the event with this number on, up to its end, wherever it
        is worked on."""
        return replayed(self._events, self.get, id, wanted, lambda: id in self._written)

    async def get(self, id: str) -> StoredResponse | None:
        """A stored response; one whose owner has died is failed first."""
        stored = await self._responses.get(id)
        if stored is None or stored.status in TERMINAL or stored.owner == self._owner:
            return stored
        if self._others.unchanged_s(stored.owner, stored.heartbeat_at) < WATCHED_S:
            return stored
        await self._responses.fail_orphans(stored.owner, STALE_S, _orphaned)
        return await self._responses.get(id)

    async def cancel(self, id: str) -> StoredResponse | None:
        """Stop an unfinished background response, here or in another process. The response as it
        is then; what has finished stays as it is."""
        if await self._stop(id):
            return await self._responses.get(id)
        stored = await self._responses.request_cancel(id)
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        while stored is not None and stored.background and stored.status not in TERMINAL:
            if time.monotonic() > deadline:  # its owner does not answer
                body = with_final_status(stored.body, "cancelled")
                await self._responses.update(id, status="cancelled", body=body)
            await asyncio.sleep(POLL_INTERVAL_S / 5)
            stored = await self._responses.get(id)
        return stored

    async def delete(self, id: str) -> bool:
        """Forget a response, and stop its work: in this process at once, in another one as soon as
        it notices. Whether there was one."""
        await self._stop(id)
        return await self._responses.delete(id)

    async def close(self) -> None:
        """Stop all work; what was unfinished has failed."""
        self._closed = True
        while self._tasks:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, id: str, reader: _DetachedEvents) -> None:
        """Of a detached run that has ended, or was cancelled before its first step."""
        self._detached.pop(id, None)
        self._written.discard(id)
        reader.put(RunFailed.of(_stopped()))  # unread by whoever has read an end

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, row: ResponseRow, event: Event) -> None:
        resource = row.resource
        if isinstance(event, RunStarted):
            await self._open(row)
        elif isinstance(event, RunEnded | RunFailed):
            if row.is_open:
                await self._end(row)
        elif resource.status == "queued":
            resource.begin()
            with contextlib.suppress(ServiceError):  # the end is what counts
                await row.save()

    async def _open(self, row: ResponseRow) -> None:
        try:
            await row.create()
        except ServiceError:
            row.is_open = False  # there is none
            raise
        self._rows.add(row)
        if self._keeper is None or self._keeper.done():
            self._keeper = self._spawn(self._keep())

    async def _end(self, row: ResponseRow) -> None:
        """Write the end of a run. That of a background one has no client who could be told that
        it is lost, so it is written however long that takes."""
        try:
            await row.save()
        except ServiceError:
            if not row.resource.identity.background:
                raise
            await self._retry(row)

    async def _settle(self, row: ResponseRow) -> None:
        """Write how a row ended that broke off; if that cannot be done now, then later."""
        try:
            await row.save()
        except ServiceError:
            if not self._closed:
                self._spawn(self._retry(row))

    async def _retry(self, row: ResponseRow) -> None:
        while True:
            await asyncio.sleep(RETRY_INTERVAL_S)
            try:
                await row.save()
            except ServiceError as error:
                log.warning("response %s: %s", row.resource.identity.id, error.message)
                continue
            return

    async def _drive(
        self,
        events: AsyncGenerator[Event, None],
        resource: Resource,
        reader: _DetachedEvents,
        stream: StreamLog | None,
    ) -> None:
        last: Event | None = None
        try:
            async with aclosing(events):
                async for event in events:
                    if stream is not None and stream.add(event):
                        await stream.flush()
                        self._logs.add(stream)
                    reader.put(event)
        except asyncio.CancelledError:
            last = RunEnded("cancelled", Usage())
        except ServiceError as error:
            last = RunFailed.of(error)
        except Exception:
            log.exception("background response %s failed", resource.identity.id)
            last = RunFailed.of(ServiceError("internal error"))
        finally:
            self._detached.pop(resource.identity.id, None)
        if last is not None:
            reader.put(last)
        if stream is not None:
            self._logs.discard(stream)
            if last is not None:
                stream.add(last)
            await stream.finish()

    async def _stop(self, id: str) -> bool:
        """Whether it was a background response of this process, which has stopped now."""
        task = self._detached.pop(id, None)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait((task,))
        return True

    async def _keep(self) -> None:
        """While there are unfinished rows: tell that their owner lives, and stop the work on those
        that another process has cancelled or deleted."""
        beaten_s = time.monotonic()
        while self._rows:
            await asyncio.sleep(POLL_INTERVAL_S)
            try:
                if self._detached:
                    await self._stop_unwanted()
                for stream in tuple(self._logs):
                    await stream.flush()
                if time.monotonic() - beaten_s >= HEARTBEAT_INTERVAL_S:
                    await self._responses.heartbeat(self._owner)
                    beaten_s = time.monotonic()
            except ServiceError as error:
                log.warning("unfinished responses: %s", error.message)

    async def _stop_unwanted(self) -> None:
        open_rows = [row for row in self._rows if row.is_open]
        active_ids = await self._responses.active_ids(self._owner)
        for row in open_rows:
            id = row.resource.identity.id
            if id not in active_ids and not row.resource.ended and id in self._detached:
                self._detached.pop(id).cancel()


class _Heartbeats:
    """When the heartbeats of other owners were last seen to change, by this process's own clock."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, float]] = {}

    def unchanged_s(self, owner: str, heartbeat_at: int) -> float:
        """Take in what a row tells of its owner."""
        now_s = time.monotonic()
        latest, since_s = self._latest.get(owner, (-1, now_s))
        if heartbeat_at != latest:
            latest, since_s = heartbeat_at, now_s
        self._latest[owner] = latest, since_s
        return now_s - since_s


class _DetachedEvents:
    """The events of a detached run for whoever reads them, if anybody does."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Event] | None = asyncio.Queue()

    def put(self, event: Event) -> None:
        if self._waiting is not None:
            self._waiting.put_nowait(event)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Up to the last one."""
        waiting = self._waiting
        assert waiting is not None
        try:
            while True:
                event = await waiting.get()
                yield event
                if isinstance(event, RunEnded | RunFailed):
                    return
        finally:
            self._waiting = None


def _stopped() -> Unavailable:
    return Unavailable("the server was stopped")


def _orphaned(stored: StoredResponse) -> bytes:
    error = Unavailable("the process that worked on this response has ended")
    return with_final_status(stored.body, "failed", error)
