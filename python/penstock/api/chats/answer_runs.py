"""Runs the answers of the web page's chats. An answer goes on if its readers leave.

The process that writes an answer owns its row and saves it about once a second. If the owner dies,
a reader in another process sees a heartbeat that no longer changes, and marks the answer failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from penstock.api.chats.answer_fold import AnswerFold
from penstock.api.chats.answer_request import (
    decode_settings,
    with_continued_answer,
    with_messages,
)
from penstock.api.chats.live_answer import LiveAnswer, end_frame, message_frame
from penstock.api.chats.records import attachment_of, encode_json, message_of
from penstock.api.codecs.request_fields.openai_compat import OpenAICompat
from penstock.api.models.model_catalog import ModelCatalog
from penstock.api.schema.chats import AnswerError, Attachment, Block, ChatMessage, MessageInfo
from penstock.base.errors import Conflict, ServiceError, Unavailable
from penstock.base.ids import new_id
from penstock.dialog import Event, GenerateRequest

if TYPE_CHECKING:
    from penstock.store import Store
    from penstock.store.chat_records import StoredMessage
    from penstock.store.lazy_store import LazyStore

POLL_INTERVAL_S: Final = 0.25
# An owner whose heartbeat did not change while a reader watched it for this long is dead.
DEAD_AFTER_S: Final = 15.0
OWNER_DIED: Final = AnswerError("the server stopped while it wrote this answer", "server_stopped")
SENT_WHILE_RUNNING: Final = "this answer is still being written; stop it first"


class AnswerRuns:
    """The answers that one API process writes. All methods must be called from its event loop."""

    def __init__(
        self, store: Store | LazyStore, models: ModelCatalog, compat: OpenAICompat
    ) -> None:
        self._chats = store.chats
        self._attachments = store.chat_attachments
        self._models = models
        self._compat = compat
        self._owner = new_id("api_")
        self._live: dict[str, LiveAnswer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def check(self, settings: Mapping[str, Any]) -> GenerateRequest:
        """Return the request that the settings of a chat make, without messages. Raises
        InvalidRequest and NotFound."""
        return decode_settings(settings, self._models, self._compat)

    def new_answer(self, chat_id: str, parent: str, created_at: int) -> StoredMessage:
        """Return the row of a new answer to the message `parent`. It is not in the store yet."""
        from penstock.store.chat_records import StoredMessage

        return StoredMessage(
            id=new_id("msg_"),
            chat_id=chat_id,
            parent=parent,
            role="assistant",
            created_at=created_at,
            status="running",
            blocks=b"[]",
            owner=self._owner,
            heartbeat_at=created_at,
        )

    async def request(
        self, settings: Mapping[str, Any], branch: Sequence[ChatMessage], chat_id: str
    ) -> GenerateRequest:
        """Return the request for an answer after `branch`, the messages from the root. Raises
        InvalidRequest and NotFound, also for an attachment that is missing."""
        request = msgspec.structs.replace(self.check(settings), container=chat_id)
        told = [(message.role, message.blocks) for message in branch]
        return await with_messages(request, settings.get("system"), told, self._attachments.read)

    def start(self, stored: StoredMessage, request: GenerateRequest) -> None:
        """Start to write a new answer. Its row is in the store. Raises Unavailable after
        `close`."""
        self._start(stored, request, [])

    async def restart(self, stored: StoredMessage, request: GenerateRequest) -> StoredMessage:
        """Go on writing an answer that has ended. The last message of `request` is the answer so
        far. Returns its new row. Raises Conflict if it is still running, and InvalidRequest if it
        cannot be continued."""
        if stored.status == "running":
            raise Conflict(SENT_WHILE_RUNNING, code="answer_running")
        request = with_continued_answer(request)
        running = await self._chats.restart(stored.chat_id, stored.id, self._owner)
        self._start(running, request, message_of(running).blocks)
        return running

    async def stop(self, chat_id: str, id: str) -> StoredMessage:
        """Stop an answer of this or another process and return its row. Raises NotFound."""
        live = self._live.get(id)
        if live is not None and live.chat_id == chat_id:
            await live.stop()
            return await self._chats.message(chat_id, id)
        return await self._chats.request_stop(chat_id, id)

    async def stop_all_of(self, chat_id: str) -> None:
        """Stop the answers of a chat that this process writes."""
        for live in [live for live in self._live.values() if live.chat_id == chat_id]:
            await live.stop()

    async def follow(self, chat_id: str, id: str) -> AsyncGenerator[bytes, None]:
        """Yield a message as SSE frames until it has ended, and b"" while nothing happens. Any
        process may write it. The message must exist."""
        live = self._live.get(id)
        if live is not None:
            async for frame in live.frames():
                yield frame
            return
        async for frame in self._poll(chat_id, id):
            yield frame

    async def close(self) -> None:
        """Stop all answers. They end as failed, with the text that they have."""
        self._closed = True
        stopped = ServiceError("the server was stopped")
        await asyncio.gather(*(live.stop(stopped) for live in self._live.values()))

    def _start(self, stored: StoredMessage, request: GenerateRequest, blocks: list[Block]) -> None:
        if self._closed:
            raise Unavailable("the server is shutting down")
        fold = AnswerFold(partial(self._keep, stored.chat_id), blocks)
        live = LiveAnswer(self._chats, stored, fold)
        self._live[stored.id] = live
        task = live.start(self._events(request))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._live.pop(stored.id, None))
        task.add_done_callback(self._tasks.discard)

    async def _events(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Yield the events of a run. Errors before the first event are raised here too, so that the
        answer shows them."""
        assert request.model is not None, "decode_settings"
        async with aclosing(self._models[request.model].run(request)) as events:
            async for event in events:
                yield event

    async def _keep(self, chat_id: str, name: str, mime_type: str, data: bytes) -> Attachment:
        return attachment_of(await self._attachments.create(name, mime_type, data, chat_id))

    async def _poll(self, chat_id: str, id: str) -> AsyncGenerator[bytes, None]:
        """Yield the frames of a message that another process writes, or that has ended."""
        shown: bytes | None = None
        heartbeat, since_s = -1, time.monotonic()
        while True:
            stored = await self._chats.message(chat_id, id)
            message = message_of(stored)
            frame = message_frame(message)
            if frame != shown:
                shown = frame
                yield frame
            if stored.status != "running":
                yield end_frame(message)
                return
            if stored.heartbeat_at != heartbeat:
                heartbeat, since_s = stored.heartbeat_at, time.monotonic()
            elif time.monotonic() - since_s > DEAD_AFTER_S:
                await self._chats.fail(id, heartbeat, _with_error(stored.info))
                continue
            yield b""
            await asyncio.sleep(POLL_INTERVAL_S)


def _with_error(info: bytes) -> bytes:
    seen = msgspec.convert(orjson.loads(info), MessageInfo)
    seen.error = OWNER_DIED
    return encode_json(seen)
