"""Files in chats: metadata in database rows, contents (bodies) in Blobs. They live as long as their
chat, unlike the files of the Files API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, insert, select

from penstock.base.errors import ServiceError
from penstock.base.ids import new_id
from penstock.store.blobs import Blobs
from penstock.store.chat_records import StoredAttachment
from penstock.store.chats import attachment_not_found, check_space
from penstock.store.client_names import safe_name
from penstock.store.clock import Clock
from penstock.store.sql.database import Database
from penstock.store.sql.faults import translated_faults
from penstock.store.sql.schema import chat_attachments

log = logging.getLogger(__name__)

FOLDER: Final = "chats"
# Seconds. An attachment that no message has used for this long is deleted.
UNUSED_EXPIRY_S: Final = 24 * 3600

_TABLE: Final = chat_attachments.c
_COLUMNS: Final = [_TABLE[name] for name in StoredAttachment.__struct_fields__]


class ChatAttachments:
    """Stores the attachments of chats. `max_bytes`: the total size of all messages and
    attachments."""

    def __init__(self, database: Database, blobs: Blobs, clock: Clock, max_bytes: int) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._max_bytes = max_bytes

    async def create(
        self, name: str, mime_type: str, data: bytes, chat_id: str | None = None
    ) -> StoredAttachment:
        """Store a file. `chat_id`: the chat that it belongs to; None: none yet. Raises StorageFull
        and StorageUnavailable."""
        stored = StoredAttachment(
            id=new_id("att_"),
            name=safe_name(name),
            mime_type=mime_type,
            size_bytes=len(data),
            created_at=self._clock(),
            chat_id=chat_id,
        )
        body = f"{FOLDER}/{stored.id}"
        await asyncio.to_thread(self._write, body, data)
        values = {name: getattr(stored, name) for name in stored.__struct_fields__}
        row = insert(chat_attachments).values(values | {"body": body})

        def work(connection: Connection) -> None:
            check_space(connection, self._max_bytes)
            connection.execute(row)

        try:
            await self._database.write(work)
        except ServiceError:
            await self.delete_bodies([body])
            raise
        return stored

    async def get(self, id: str) -> StoredAttachment:
        """Return the metadata of an attachment. Raises NotFound (`attachment_not_found`)."""
        return StoredAttachment(**(await self._row(id))._mapping)

    async def read(self, id: str) -> bytes:
        """Return the content of an attachment. Raises NotFound."""
        await self._row(id)
        return await asyncio.to_thread(self._read, id)

    async def of_chat(self, chat_id: str) -> list[StoredAttachment]:
        """Return the attachments of a chat."""
        query = select(*_COLUMNS).where(_TABLE.chat_id == chat_id).order_by(_TABLE.sequence)
        rows = await self._database.read(lambda c: c.execute(query).all())
        return [StoredAttachment(**row._mapping) for row in rows]

    async def delete_unused(self) -> None:
        """Delete the attachments that no message has used within a day."""
        limit = self._clock() - UNUSED_EXPIRY_S
        unused = delete(chat_attachments).where(_TABLE.chat_id.is_(None), _TABLE.created_at < limit)
        change = unused.returning(_TABLE.body)
        bodies = await self._database.write(lambda c: list(c.execute(change).scalars()))
        await self.delete_bodies(bodies)

    async def delete_bodies(self, bodies: Iterable[str]) -> None:
        """Delete contents whose rows are already deleted. If a deletion fails, log it; the sweep
        deletes that content later."""
        await asyncio.to_thread(self._delete, tuple(bodies))

    async def _row(self, id: str) -> Row[Any]:
        query = select(*_COLUMNS).where(_TABLE.id == id)
        row = await self._database.read(lambda c: c.execute(query).one_or_none())
        if row is None:
            raise attachment_not_found(id)
        return row

    def _write(self, body: str, data: bytes) -> None:
        with translated_faults():
            self._blobs.write(body, data)

    def _read(self, id: str) -> bytes:
        with translated_faults():
            try:
                return self._blobs.read(f"{FOLDER}/{id}")
            except FileNotFoundError:
                raise attachment_not_found(id) from None

    def _delete(self, bodies: tuple[str, ...]) -> None:
        for body in bodies:
            try:
                self._blobs.delete(body)
            except OSError as error:
                log.warning("blobs: %s", error)
