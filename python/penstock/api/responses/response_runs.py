"""Runs the responses of this API process: updates their database rows, and continues background
responses after their clients have disconnected.

The process that runs an unfinished response owns its row and updates its heartbeat. If the owner
dies, the next process that reads the row finds a stale heartbeat and marks the response failed, so
that no response stays in progress forever.
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
from penstock.api.responses.stream_log import StreamLog, replay_stream
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
# An owner is considered dead if its heartbeat is STALE_S old and did not change while this process
# watched it for WATCHED_S. Age alone proves nothing: clocks are set forward, machines are
# suspended, and the clocks of two machines differ.
STALE_S: Final = 30
WATCHED_S: Final = 3 * HEARTBEAT_INTERVAL_S
# Seconds that `cancel` waits until the process that owns the response has stopped it.
CANCEL_TIMEOUT_S: Final = 2.0
RETRY_INTERVAL_S: Final = 1.0


class ResponseRuns:
    """Runs the responses of one API process. All methods must be called from its event loop."""

    def __init__(self, store: Store | LazyStore) -> None:
        self._responses = store.responses
        self._events = store.response_events
        self._owner = new_id("api_")
        self._detached: dict[str, asyncio.Task[None]] = {}
        self._logs: set[StreamLog] = set()
        self._written: set[str] = set()  # ids of responses whose stream is not completely stored
        self._tasks: set[asyncio.Task[None]] = set()
        self._rows: set[ResponseRow] = set()
        self._maintainer: asyncio.Task[None] | None = None
        self._others = _Heartbeats()
        self._closed = False

    def row(
        self, resource: Resource, turn: tuple[Message, ...], previous_id: str | None
    ) -> ResponseRow:
        """Return the row for a response that is to be stored. The row is not in the database until
        its `create` is called."""
        return ResponseRow(self._responses, resource, turn, self._owner, previous_id)

    async def follow(
        self, events: AsyncGenerator[Event, None], resource: Resource, row: ResponseRow | None
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a run after applying each to `resource`, and store changes of the
        status in `row`. Field names in errors are rewritten to those of the client's JSON. If the
        generator is closed before the response has ended, the response is cancelled."""
        field_paths = resource.identity.field_paths
        try:
            async with aclosing(events) as run:
                async for event in run:
                    if isinstance(event, RunFailed):
                        event = field_paths.rewrite_failure(event)
                    if isinstance(event, RunStarted):
                        record_prompt_tokens(event.prompt_tokens)
                    resource.add(event)
                    if row is not None:
                        await self._write(row, event)
                    yield event
        except (asyncio.CancelledError, GeneratorExit):
            if resource.ended:
                pass  # the final status may already be stored, so it must not change
            elif self._closed or server_stopped():
                resource.fail(_stopped())
            else:
                resource.cancel()
            raise
        except ServiceError as error:
            rewritten = rewrite_error_field(error, field_paths)
            resource.fail(rewritten)
            raise rewritten from error.__cause__
        except Exception:
            resource.fail(ServiceError("internal error"))
            raise
        finally:
            if row is not None:
                self._rows.discard(row)
                if row.is_open:
                    await self._save_interrupted(row)

    async def follow_whole(
        self, events: AsyncGenerator[Event, None], resource: Resource, row: ResponseRow | None
    ) -> AsyncGenerator[Event, None]:
        """Like `follow`, but write the row only once, when the run has ended. For responses whose
        id the client learns only at the end."""
        async with aclosing(self.follow(events, resource, None)) as run:
            async for event in run:
                if row is not None and isinstance(event, RunEnded):
                    await row.create()
                yield event

    def detach(
        self, events: AsyncGenerator[Event, None], resource: Resource, *, logged: bool
    ) -> AsyncGenerator[Event, None]:
        """Run a response in the background, independent of its client. Returns its events for one
        reader, which may stop reading at any time. Raises Unavailable after `close`.

        `logged`: record the stream in the store, so that clients can `replay` it.
        """
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

    def replay(self, id: str, start: int) -> AsyncGenerator[bytes, None]:
        """Yield the recorded stream of response `id` from event number `start` to its end. Any
        process may run the response."""
        return replay_stream(self._events, self.get, id, start, lambda: id in self._written)

    async def get(self, id: str) -> StoredResponse | None:
        """Return a stored response, or None if there is none with this id. If its owner has died,
        mark it failed first."""
        stored = await self._responses.get(id)
        if stored is None or stored.status in TERMINAL or stored.owner == self._owner:
            return stored
        if self._others.unchanged_s(stored.owner, stored.heartbeat_at) < WATCHED_S:
            return stored
        await self._responses.fail_orphans(stored.owner, STALE_S, _orphaned)
        return await self._responses.get(id)

    async def cancel(self, id: str) -> StoredResponse | None:
        """Stop a background response of this or another process, and return its stored state
        afterwards, or None if there is none with this id. A finished response is not changed."""
        if await self._stop(id):
            return await self._responses.get(id)
        stored = await self._responses.request_cancel(id)
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        while stored is not None and stored.background and stored.status not in TERMINAL:
            if time.monotonic() > deadline:  # the owner does not react
                body = with_final_status(stored.body, "cancelled")
                await self._responses.update(id, status="cancelled", body=body)
            await asyncio.sleep(POLL_INTERVAL_S / 5)
            stored = await self._responses.get(id)
        return stored

    async def delete(self, id: str) -> bool:
        """Delete a response and stop its run: immediately if this process runs it, otherwise as
        soon as its owner notices. Returns False if there is no such response."""
        await self._stop(id)
        return await self._responses.delete(id)

    async def close(self) -> None:
        """Stop all runs. Unfinished responses are marked failed."""
        self._closed = True
        while self._tasks:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, id: str, reader: _DetachedEvents) -> None:
        """Remove a detached run that has ended, or that was cancelled before its first step."""
        self._detached.pop(id, None)
        self._written.discard(id)
        reader.put(RunFailed.of(_stopped()))  # ignored by a reader at its end

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
            with contextlib.suppress(ServiceError):  # only the final status must be stored
                await row.save()

    async def _open(self, row: ResponseRow) -> None:
        try:
            await row.create()
        except ServiceError:
            row.is_open = False  # it was not created
            raise
        self._rows.add(row)
        if self._maintainer is None or self._maintainer.done():
            self._maintainer = self._spawn(self._maintain())

    async def _end(self, row: ResponseRow) -> None:
        """Save the final state of a run. If the store fails, raise its error. For a background
        response, retry until the state is saved instead, because no client waits for the error."""
        try:
            await row.save()
        except ServiceError:
            if not row.resource.identity.background:
                raise
            await self._retry(row)

    async def _save_interrupted(self, row: ResponseRow) -> None:
        """Save the final state of an interrupted run. If the store fails, retry in the
        background."""
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
        """Stop a background response. Returns False if this process runs no response with this
        id."""
        task = self._detached.pop(id, None)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait((task,))
        return True

    async def _maintain(self) -> None:
        """While this process has unfinished rows: update their heartbeats, flush the recorded
        streams, and stop runs that another process has cancelled or deleted."""
        heartbeat_s = time.monotonic()
        while self._rows:
            await asyncio.sleep(POLL_INTERVAL_S)
            try:
                if self._detached:
                    await self._stop_cancelled()
                for stream in tuple(self._logs):
                    await stream.flush()
                if time.monotonic() - heartbeat_s >= HEARTBEAT_INTERVAL_S:
                    await self._responses.heartbeat(self._owner)
                    heartbeat_s = time.monotonic()
            except ServiceError as error:
                log.warning("unfinished responses: %s", error.message)

    async def _stop_cancelled(self) -> None:
        open_rows = [row for row in self._rows if row.is_open]
        active_ids = await self._responses.active_ids(self._owner)
        for row in open_rows:
            id = row.resource.identity.id
            if id not in active_ids and not row.resource.ended and id in self._detached:
                self._detached.pop(id).cancel()


class _Heartbeats:
    """Remembers when the heartbeats of other owners last changed, measured by this process's
    clock."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, float]] = {}

    def unchanged_s(self, owner: str, heartbeat_at: int) -> float:
        """Return for how many seconds this process has seen the heartbeat of `owner` unchanged.

        `heartbeat_at`: the heartbeat in the row that was just read, in Unix seconds.
        """
        now_s = time.monotonic()
        latest, since_s = self._latest.get(owner, (-1, now_s))
        if heartbeat_at != latest:
            latest, since_s = heartbeat_at, now_s
        self._latest[owner] = latest, since_s
        return now_s - since_s


class _DetachedEvents:
    """A queue that passes the events of a detached run to at most one reader."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Event] | None = asyncio.Queue()

    def put(self, event: Event) -> None:
        """Add an event. Does nothing after the reader has stopped."""
        if self._waiting is not None:
            self._waiting.put_nowait(event)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events up to the end of the run."""
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
    error = Unavailable("the process that ran this response has ended")
    return with_final_status(stored.body, "failed", error)
