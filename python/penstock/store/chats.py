"""The chats of the web page and their messages. Any API process may read and change a chat; only
the owner of a running answer writes that answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, delete, func, insert, or_, select, update

from penstock.base.errors import NotFound
from penstock.store.chat_records import (
    RUNNING,
    ChatHit,
    StoredChat,
    StoredMessage,
)
from penstock.store.clock import Clock
from penstock.store.errors import StorageFull, shorten
from penstock.store.sql.database import Database
from penstock.store.sql.schema import chat_attachments, chat_messages, chats

SNIPPET_CHARS: Final = 120
# A hit begins this number of characters after the start of its snippet.
SNIPPET_LEAD_CHARS: Final = 30
# Searches see this number of characters of a message.
MAX_TEXT_CHARS: Final = 100_000

_MESSAGE: Final = chat_messages.c
_MESSAGE_COLUMNS: Final = [_MESSAGE[name] for name in StoredMessage.__struct_fields__]
_CHAT_COLUMNS: Final = [chats.c[name] for name in StoredChat.__struct_fields__]


class Chats:
    """Stores the chats of all API processes. `max_bytes`: the total size of all messages and
    attachments."""

    def __init__(self, database: Database, clock: Clock, max_bytes: int) -> None:
        self._database = database
        self._clock = clock
        self._max_bytes = max_bytes

    async def create(self, chat: StoredChat, messages: Sequence[tuple[StoredMessage, str]]) -> None:
        """Store a new chat with its messages, each with its text. Raises StorageFull."""
        values = _values(chat) | {"words": chat.title.casefold()}

        def work(connection: Connection) -> None:
            check_space(connection, self._max_bytes)
            connection.execute(insert(chats).values(values))
            for message, text in messages:
                _insert(connection, message, text)

        await self._database.write(work)

    async def get(self, id: str) -> StoredChat:
        """Return a chat. Raises NotFound (`chat_not_found`)."""
        query = select(*_CHAT_COLUMNS).where(chats.c.id == id)
        row = await self._database.read(lambda c: c.execute(query).one_or_none())
        if row is None:
            raise chat_not_found(id)
        return StoredChat(**row._mapping)

    async def search(
        self, query: str = "", *, limit: int, before: str | None = None
    ) -> tuple[list[ChatHit], bool]:
        """Return a page of chats, the last changed first, and whether more follow.

        `query`: only chats whose title or messages have this text, in any case.
        `before`: the id of the last chat of the previous page.
        """
        wanted = query.casefold()
        found = select(chats.c.id, chats.c.title, chats.c.updated_at)
        if wanted:
            hits = select(_MESSAGE.chat_id).where(_MESSAGE.words.contains(wanted, autoescape=True))
            titled = chats.c.words.contains(wanted, autoescape=True)
            found = found.where(or_(titled, chats.c.id.in_(hits)))
        newest_first = found.order_by(chats.c.updated_at.desc(), chats.c.id.desc())

        def work(connection: Connection) -> tuple[list[ChatHit], bool]:
            page = newest_first.limit(limit + 1)
            if before is not None:
                last = connection.execute(
                    select(chats.c.updated_at).where(chats.c.id == before)
                ).scalar_one_or_none()
                if last is None:
                    return [], False
                older = or_(
                    chats.c.updated_at < last, (chats.c.updated_at == last) & (chats.c.id < before)
                )
                page = page.where(older)
            rows = connection.execute(page).all()
            shown = [_hit(connection, row, wanted) for row in rows[:limit]]
            return shown, len(rows) > limit

        return await self._database.read(work)

    async def update(self, id: str, changes: dict[str, Any]) -> StoredChat:
        """Change `title`, `settings` or `tail` of a chat and return it. Raises NotFound for an
        unknown chat and for a `tail` that is not one of its messages."""
        values = dict(changes)
        if "title" in values:
            values["words"] = values["title"].casefold()

        def work(connection: Connection) -> Row[Any]:
            if values.get("tail") is not None:
                _message_row(connection, id, values["tail"])
            if values:
                connection.execute(update(chats).where(chats.c.id == id).values(values))
            row = connection.execute(select(*_CHAT_COLUMNS).where(chats.c.id == id)).one_or_none()
            if row is None:
                raise chat_not_found(id)
            return row

        return StoredChat(**(await self._database.write(work))._mapping)

    async def delete(self, id: str) -> list[str] | None:
        """Delete a chat with its messages and attachments. Returns the names of the attachments'
        bodies, or None if there is no such chat."""

        def work(connection: Connection) -> list[str] | None:
            bodies = connection.execute(
                delete(chat_attachments)
                .where(chat_attachments.c.chat_id == id)
                .returning(chat_attachments.c.body)
            ).scalars()
            names = list(bodies)
            connection.execute(delete(chat_messages).where(_MESSAGE.chat_id == id))
            found = connection.execute(delete(chats).where(chats.c.id == id)).rowcount > 0
            return names if found else None

        return await self._database.write(work)

    async def messages(self, chat_id: str) -> list[StoredMessage]:
        """Return all messages of a chat in the order in which they were added."""
        query = select(*_MESSAGE_COLUMNS).where(_MESSAGE.chat_id == chat_id)
        ordered = query.order_by(_MESSAGE.sequence)
        rows = await self._database.read(lambda c: c.execute(ordered).all())
        return [StoredMessage(**row._mapping) for row in rows]

    async def message(self, chat_id: str, id: str) -> StoredMessage:
        """Return one message. Raises NotFound (`message_not_found`)."""
        row = await self._database.read(lambda c: _message_row(c, chat_id, id))
        return StoredMessage(**row._mapping)

    async def add_messages(
        self,
        chat_id: str,
        messages: Sequence[tuple[StoredMessage, str]],
        attachments: Sequence[str] = (),
    ) -> None:
        """Append messages, each with its text, and show the branch of the last one. The first is a
        child of a stored message or the first of a branch.

        `attachments`: ids of attachments that now belong to the chat.

        Raises NotFound for an unknown chat, parent or attachment, and StorageFull.
        """
        last = messages[-1][0]

        def work(connection: Connection) -> None:
            check_space(connection, self._max_bytes)
            parent = messages[0][0].parent
            if parent is not None:
                _message_row(connection, chat_id, parent)
            change = update(chats).where(chats.c.id == chat_id)
            changed = change.values(tail=last.id, updated_at=self._clock())
            if connection.execute(changed).rowcount == 0:
                raise chat_not_found(chat_id)
            for message, text in messages:
                _insert(connection, message, text)
            for id in attachments:
                _claim(connection, chat_id, id)

        await self._database.write(work)

    async def save(self, message: StoredMessage, text: str) -> bool:
        """Write the state of a running answer. Returns False if the answer must not go on: it was
        deleted, or ended by another process, or a client asked to stop it."""
        values = {
            "status": message.status,
            "blocks": message.blocks,
            "info": message.info,
            **_derived(message.blocks, text),
            "heartbeat_at": self._clock(),
        }
        running = (_MESSAGE.id == message.id) & (_MESSAGE.status == RUNNING)
        change = update(chat_messages).where(running).values(values)
        saved = change.returning(_MESSAGE.stop_requested)
        stop = await self._database.write(lambda c: c.execute(saved).scalar_one_or_none())
        return stop is not None and not stop

    async def restart(self, chat_id: str, id: str, owner: str) -> StoredMessage:
        """Make an answer that has ended run again, under a new owner, and show its branch. Raises
        NotFound."""
        values = {
            "status": RUNNING,
            "owner": owner,
            "stop_requested": False,
            "heartbeat_at": self._clock(),
        }

        def work(connection: Connection) -> Row[Any]:
            connection.execute(update(chat_messages).where(_MESSAGE.id == id).values(values))
            changed = {"tail": id, "updated_at": self._clock()}
            connection.execute(update(chats).where(chats.c.id == chat_id).values(changed))
            return _message_row(connection, chat_id, id)

        return StoredMessage(**(await self._database.write(work))._mapping)

    async def replace_blocks(
        self, chat_id: str, id: str, blocks: bytes, text: str
    ) -> StoredMessage:
        """Replace the blocks of a message that is not running, and return it. Raises NotFound."""
        ended = (_MESSAGE.id == id) & (_MESSAGE.status != RUNNING)
        change = update(chat_messages).where(ended).values(blocks=blocks, **_derived(blocks, text))

        def work(connection: Connection) -> Row[Any]:
            connection.execute(change)
            return _message_row(connection, chat_id, id)

        return StoredMessage(**(await self._database.write(work))._mapping)

    async def request_stop(self, chat_id: str, id: str) -> StoredMessage:
        """Ask the owner of a running answer to stop it, and return the message. Raises
        NotFound."""
        running = (_MESSAGE.id == id) & (_MESSAGE.status == RUNNING)
        change = update(chat_messages).where(running).values(stop_requested=True)

        def work(connection: Connection) -> Row[Any]:
            connection.execute(change)
            return _message_row(connection, chat_id, id)

        return StoredMessage(**(await self._database.write(work))._mapping)

    async def fail(self, id: str, heartbeat_at: int, info: bytes) -> None:
        """Mark a running answer failed, unless its owner wrote it after `heartbeat_at`."""
        dead = (_MESSAGE.id == id) & (_MESSAGE.status == RUNNING)
        change = update(chat_messages).where(dead, _MESSAGE.heartbeat_at == heartbeat_at)
        failed = change.values(status="failed", info=info)
        await self._database.write(lambda c: c.execute(failed))


def check_space(connection: Connection, max_bytes: int) -> None:
    """Raise StorageFull if the chats have reached their total size."""
    texts = select(func.coalesce(func.sum(_MESSAGE.size_bytes), 0))
    files = select(func.coalesce(func.sum(chat_attachments.c.size_bytes), 0))
    used = connection.execute(texts).scalar_one() + connection.execute(files).scalar_one()
    if used >= max_bytes:
        raise StorageFull


def chat_not_found(id: str) -> NotFound:
    """Return the error for a chat that is unknown or deleted."""
    return NotFound(f"Chat '{shorten(id)}' not found", code="chat_not_found")


def _message_row(connection: Connection, chat_id: str, id: str) -> Row[Any]:
    query = select(*_MESSAGE_COLUMNS).where(_MESSAGE.id == id, _MESSAGE.chat_id == chat_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"Message '{shorten(id)}' not found", code="message_not_found")
    return row


def _insert(connection: Connection, message: StoredMessage, text: str) -> None:
    connection.execute(
        insert(chat_messages).values(_values(message) | _derived(message.blocks, text))
    )


def _derived(blocks: bytes, text: str) -> dict[str, Any]:
    """Return the columns in which searches look, and the size."""
    text = text[:MAX_TEXT_CHARS]
    return {"text": text, "words": text.casefold(), "size_bytes": len(blocks)}


def _claim(connection: Connection, chat_id: str, id: str) -> None:
    """Give an attachment to a chat. Raises NotFound if it is unknown or belongs to another chat."""
    table = chat_attachments.c
    free = or_(table.chat_id.is_(None), table.chat_id == chat_id)
    change = update(chat_attachments).where(table.id == id, free).values(chat_id=chat_id)
    if connection.execute(change).rowcount == 0:
        raise attachment_not_found(id)


def attachment_not_found(id: str) -> NotFound:
    """Return the error for an attachment that is unknown, deleted or expired."""
    return NotFound(f"Attachment '{shorten(id)}' not found", code="attachment_not_found")


def _hit(connection: Connection, row: Any, wanted: str) -> ChatHit:
    """Return the list entry of a chat. Its snippet is taken from the first message with the wanted
    words, or from the first message."""
    texts = select(_MESSAGE.text).where(_MESSAGE.chat_id == row.id).order_by(_MESSAGE.sequence)
    if wanted:
        texts = texts.where(_MESSAGE.words.contains(wanted, autoescape=True))
    text = connection.execute(texts.limit(1)).scalar_one_or_none() or ""
    start = max(0, text.casefold().find(wanted) - SNIPPET_LEAD_CHARS)
    snippet = " ".join(text[start : start + SNIPPET_CHARS].split())
    return ChatHit(id=row.id, title=row.title, updated_at=row.updated_at, snippet=snippet)


def _values(record: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}
