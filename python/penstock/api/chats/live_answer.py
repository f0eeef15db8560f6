"""One answer that this process is writing: its readers, and the row in which it is kept."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.api.chats.answer_fold import AnswerFold, BlockSet, Change
from penstock.api.chats.records import encode_json, message_of
from penstock.api.schema.chats import ChatMessage
from penstock.base.errors import ServiceError
from penstock.dialog import Event

if TYPE_CHECKING:
    from penstock.store.chat_records import StoredMessage
    from penstock.store.chats import Chats

log = logging.getLogger(__name__)

SAVE_INTERVAL_S: Final = 1.0
# An answer without changes is saved this often, to show that its process is alive.
HEARTBEAT_INTERVAL_S: Final = 5.0
RETRY_INTERVAL_S: Final = 1.0
# A reader that has this many unread frames gets the whole message instead.
MAX_UNREAD_FRAMES: Final = 512
IDLE_S: Final = 1.0
INTERNAL: Final = "internal error"


class LiveAnswer:
    """An answer that is being written.

    `stored`: its row as it was when the answer started.
    """

    def __init__(self, chats: Chats, stored: StoredMessage, fold: AnswerFold) -> None:
        self._chats = chats
        self._stored = stored
        self._fold = fold
        self._readers: set[_Reader] = set()
        self._changed = False
        self._ended = False
        self._interrupted = False
        self._task: asyncio.Task[None] | None = None
        self._stop_reason: ServiceError | None = None

    @property
    def chat_id(self) -> str:
        """The id of the chat that the answer belongs to."""
        return self._stored.chat_id

    def start(self, events: AsyncGenerator[Event, None]) -> asyncio.Task[None]:
        """Start to write the answer. Returns the task that ends when the answer is stored."""
        self._task = asyncio.create_task(self._run(events))
        return self._task

    async def stop(self, reason: ServiceError | None = None) -> None:
        """Stop the answer and wait until its end is stored. `reason`: the error to show; None: a
        client asked for it, and the answer ends as "stopped"."""
        assert self._task is not None, "start"
        self._interrupt(reason)
        await asyncio.wait((self._task,))

    def _interrupt(self, reason: ServiceError | None) -> None:
        """Cancel the run. Does nothing the second time, because the run then stores its end."""
        assert self._task is not None, "start"
        if not self._interrupted:
            self._interrupted = True
            self._stop_reason = reason
            self._task.cancel()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as SSE frames: the whole message, then its changes, then its end; and
        b"" about once a second while nothing changes."""
        reader = _Reader(lambda: message_frame(self._message()))
        self._readers.add(reader)
        try:
            yield message_frame(self._message())
            while not self._ended or reader.has_frames:
                yield await reader.next()
            yield end_frame(self._message())
        finally:
            self._readers.discard(reader)

    async def _run(self, events: AsyncGenerator[Event, None]) -> None:
        saving = asyncio.create_task(self._save_periodically())
        try:
            async with aclosing(events) as run:
                async for event in run:
                    self._publish(await self._fold.add(event))
            assert self._fold.status != "running", "a run ends with RunEnded or RunFailed"
        except asyncio.CancelledError:
            reason = self._stop_reason
            if reason is None:
                self._fold.end("stopped")
            else:
                self._fold.fail(reason.message, reason.code)
        except ServiceError as error:
            self._fold.fail(error.message, error.code)
        except Exception:
            log.exception("the answer %s failed", self._stored.id)
            self._fold.fail(INTERNAL, "internal_error")
        finally:
            self._interrupted = True
            saving.cancel()
            await self._store_end()
            self._ended = True
            self._broadcast(message_frame(self._message()))

    async def _save_periodically(self) -> None:
        """Save the answer while it changes. If it was deleted, or a client of another process asked
        to stop it, interrupt the run."""
        idle_s = 0.0
        while True:
            await asyncio.sleep(SAVE_INTERVAL_S)
            idle_s += SAVE_INTERVAL_S
            if not self._changed and idle_s < HEARTBEAT_INTERVAL_S:
                continue
            self._changed, idle_s = False, 0.0
            try:
                goes_on = await self._save()
            except ServiceError as error:
                log.warning("answer %s: %s", self._stored.id, error.message)
                continue
            if not goes_on:
                self._interrupt(None)
                return

    async def _store_end(self) -> None:
        """Save the end of the answer. If the store fails, try again once; the answer then fails for
        its readers when its heartbeat gets old."""
        for _ in range(2):
            try:
                await self._save()
            except ServiceError as error:
                log.warning("answer %s: %s", self._stored.id, error.message)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(RETRY_INTERVAL_S)
            else:
                return

    async def _save(self) -> bool:
        fold = self._fold
        state = msgspec.structs.replace(
            self._stored,
            status=fold.status,
            blocks=encode_json(fold.blocks),
            info=encode_json(fold.info),
        )
        return await self._chats.save(state, fold.text)

    def _publish(self, changes: list[Change]) -> None:
        if changes:
            self._changed = True
        if not self._readers:
            return
        for change in changes:
            self._broadcast(_change_frame(change))

    def _broadcast(self, frame: bytes) -> None:
        for reader in self._readers:
            reader.put(frame)

    def _message(self) -> ChatMessage:
        fold = self._fold
        return msgspec.structs.replace(
            message_of(self._stored), status=fold.status, blocks=fold.blocks, info=fold.info
        )


class _Reader:
    """The unread frames of one reader. `whole`: returns a frame with the whole message."""

    def __init__(self, whole: Callable[[], bytes]) -> None:
        self._whole = whole
        self._frames: list[bytes] = []
        self._ready = asyncio.Event()

    @property
    def has_frames(self) -> bool:
        return bool(self._frames)

    def put(self, frame: bytes) -> None:
        """Add a frame. A reader that is too slow gets the whole message instead of its frames."""
        self._frames.append(frame)
        if len(self._frames) > MAX_UNREAD_FRAMES:
            self._frames = [self._whole()]
        self._ready.set()

    async def next(self) -> bytes:
        """Return all unread frames, b"" if there are none for a second."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ready.wait(), IDLE_S)
        self._ready.clear()
        frames, self._frames = self._frames, []
        return b"".join(frames)


def message_frame(message: ChatMessage) -> bytes:
    """Return the SSE frame with a whole message."""
    return _frame("message", message)


def end_frame(message: ChatMessage) -> bytes:
    """Return the last SSE frame of a message."""
    return _frame("info", {"status": message.status, "info": message.info})


def _change_frame(change: Change) -> bytes:
    if isinstance(change, BlockSet):
        return _frame("block", {"index": change.index, "block": change.block})
    data: dict[str, Any] = {"index": change.index, "text": change.text}
    if change.tokens is not None:
        data["tokens"] = change.tokens
    return _frame("append", data)


def _frame(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode_json(data))
