"""Stored files: rows in the database, bodies beside it."""

from __future__ import annotations

import asyncio
import logging
import mimetypes
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, BinaryIO, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select

from penstock.base.errors import ServiceError
from penstock.base.ids import new_id
from penstock.store.blobs import Blobs, BlobWriter
from penstock.store.client_names import safe_name
from penstock.store.clock import Clock
from penstock.store.errors import FileElided, FileFailed, file_not_found
from penstock.store.records import FileSource, NewFile, StoredFile
from penstock.store.retention import Retention, drop_oldest
from penstock.store.sql.database import Database
from penstock.store.sql.faults import translated_faults
from penstock.store.sql.schema import files

log = logging.getLogger(__name__)

FOLDER: Final = "files"
# A thread is asked to write once so much has come together.
WRITE_BYTES: Final = 1024 * 1024
READ_BYTES: Final = 256 * 1024
BINARY_TYPE: Final = "application/octet-stream"
BINARY_FORMAT: Final = "bin"
NO_BODY: Final = ""

_TABLE: Final = files.c


class Files:
    """Files of clients and tools."""

    def __init__(
        self, database: Database, blobs: Blobs, clock: Clock, retention: Retention
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._retention = retention

    async def create(self, new: NewFile) -> StoredFile:
        """Keep a file; beyond the quota the oldest ones go. One with an id that another file has
        is not kept: that file is returned. Raises StorageFull, StorageUnavailable."""
        if new.id is not None:
            return await self._create_as(new.id, new)
        stored, body = self.record(new, new_id("file-")), NO_BODY
        if new.data is not None:
            body = _new_body()
            await asyncio.to_thread(self._write, body, new.data)
        return await self.insert(stored, body)

    async def begin(self) -> Upload:
        """A file whose body comes in pieces."""
        body = _new_body()
        return Upload(self, body, await asyncio.to_thread(self._begin, body))

    async def get(self, id: str) -> StoredFile | None:
        """What is known of a file; None: unknown, deleted or expired."""
        row = await self._row(id)
        return None if row is None else _stored(row)

    async def read(self, id: str) -> bytes:
        """The body of a file. Raises NotFound (`file_not_found`), FileElided, FileFailed."""
        return b"".join([piece async for piece in await self.open(id)])

    async def open(self, id: str) -> AsyncGenerator[bytes, None]:
        """The body of a file in pieces. Raises as `read`, and StorageUnavailable in the midst."""
        row = await self._row(id)
        if row is None:
            raise file_not_found(id)
        if row.code is not None:
            raise FileFailed(row.message or "the file was not made", code=row.code)
        body = None if row.elided else await asyncio.to_thread(self._open, row.body)
        if body is None:
            raise FileElided(f"the body of file '{id}' is not kept")
        return _pieces(body)

    async def list(
        self, container: str | None = None, *, session: str | None = None
    ) -> list[StoredFile]:
        """All files, or those of a container or a session; the newest first."""
        wanted = select(files).where(self._alive())
        if container is not None:
            wanted = wanted.where(_TABLE.container_id == container)
        if session is not None:
            wanted = wanted.where(_TABLE.session == session)
        wanted = wanted.order_by(_TABLE.sequence.desc())
        rows = await self._database.read(lambda c: c.execute(wanted).all())
        return [_stored(row) for row in rows]

    async def delete(self, id: str) -> bool:
        """Whether there was one to delete."""
        change = delete(files).where(_TABLE.id == id, self._alive()).returning(_TABLE.body)
        body = await self._database.write(lambda c: c.execute(change).scalar_one_or_none())
        if body is None:
            return False
        await asyncio.to_thread(self._forget, [body])
        return True

    async def insert(self, stored: StoredFile, body: str) -> StoredFile:
        """Keep the row of a file whose body is in place."""
        try:
            dropped = await self._database.write(partial(self._insert, stored=stored, body=body))
        except ServiceError:
            await asyncio.to_thread(self._forget, [body])
            raise
        if dropped:
            await asyncio.to_thread(self._forget, dropped)
        return stored

    async def _create_as(self, id: str, new: NewFile) -> StoredFile:
        """Keep a file under a given id. The row comes before the body: of several at once only one
        gets the row."""
        stored = self.record(new, id)
        body = NO_BODY if new.data is None else _new_body()
        expired = delete(files).where(_TABLE.id == id, _TABLE.expires_at <= stored.created_at)
        wanted = select(files).where(_TABLE.id == id)

        def work(connection: Connection) -> StoredFile | Sequence[str]:
            connection.execute(expired)  # no sweep has been there yet
            row = connection.execute(wanted).one_or_none()
            return self._insert(connection, stored, body) if row is None else _stored(row)

        result = await self._database.write(work)
        if isinstance(result, StoredFile):
            return result
        await asyncio.to_thread(self._forget, result)
        if new.data is not None:
            try:
                await asyncio.to_thread(self._write, body, new.data)
            except ServiceError:
                await self.delete(id)
                raise
        return stored

    async def _row(self, id: str) -> Row[Any] | None:
        wanted = select(files).where(_TABLE.id == id, self._alive())
        return await self._database.read(lambda c: c.execute(wanted).one_or_none())

    def _insert(self, connection: Connection, stored: StoredFile, body: str) -> Sequence[str]:
        """The bodies of the files that went in its place."""
        connection.execute(insert(files).values(_values(stored) | {"body": body}))
        return drop_oldest(connection, self._retention)

    def record(self, new: NewFile, id: str) -> StoredFile:
        """What will be known of a new file; its name made safe."""
        now = self._clock()
        name = safe_name(new.name)
        return StoredFile(
            id=id,
            name=name,
            format=new.format or format_of(name),
            mime_type=new.mime_type or mimetypes.guess_type(name)[0] or BINARY_TYPE,
            size_bytes=new.size_bytes if new.data is None else len(new.data),
            created_at=now,
            expires_at=now + self._retention.expiry_s,
            purpose=new.purpose,
            source=new.source,
            container_id=new.container_id,
            session=new.session,
            elided=new.data is None and new.code is None,
            code=new.code,
            message=new.message,
        )

    def _begin(self, body: str) -> BlobWriter:
        with translated_faults():
            return self._blobs.begin(body)

    def _write(self, body: str, data: bytes) -> None:
        with translated_faults():
            self._blobs.write(body, data)

    def _open(self, body: str) -> BinaryIO | None:
        with translated_faults():
            try:
                return self._blobs.open(body)
            except FileNotFoundError:
                return None

    def _forget(self, bodies: Iterable[str]) -> None:
        """Delete bodies whose rows are gone. What cannot be deleted now, a sweep will."""
        for body in filter(None, bodies):
            try:
                self._blobs.delete(body)
            except OSError as error:
                log.warning("blobs: %s", error)

    def _alive(self) -> ColumnElement[bool]:
        return _TABLE.expires_at > self._clock()


class Upload:
    """A file that arrives in pieces. Ends with `finish` or with `abort`."""

    def __init__(self, owner: Files, body: str, writer: BlobWriter) -> None:
        self._owner = owner
        self._body = body
        self._writer = writer
        self._waiting = bytearray()

    async def write(self, chunk: bytes) -> None:
        """Append to the body. Raises StorageFull, StorageUnavailable."""
        self._waiting += chunk
        if len(self._waiting) >= WRITE_BYTES:
            await asyncio.to_thread(self._guarded, self._write_out)

    async def finish(self, new: NewFile) -> StoredFile:
        """Keep the file, which `new` describes; its `data` is None."""
        await asyncio.to_thread(self._guarded, self._commit)
        stored = self._owner.record(new, new_id("file-"))
        whole = msgspec.structs.replace(stored, size_bytes=self._writer.size_bytes, elided=False)
        return await self._owner.insert(whole, self._body)

    async def abort(self) -> None:
        """Leave nothing behind."""
        await asyncio.to_thread(self._writer.abort)

    def _write_out(self) -> None:
        self._writer.write(bytes(self._waiting))
        self._waiting.clear()

    def _commit(self) -> None:
        self._write_out()
        self._writer.commit()

    def _guarded(self, work: Callable[[], None]) -> None:
        with translated_faults():
            work()


async def _pieces(body: BinaryIO) -> AsyncGenerator[bytes, None]:
    """All of a body, which is closed at the end, or when the generator is."""

    def read() -> bytes:
        with translated_faults():
            return body.read(READ_BYTES)

    try:
        while piece := await asyncio.to_thread(read):
            yield piece
    finally:
        body.close()


def format_of(name: str) -> str:
    """The format that a name's suffix tells: `notes.MD` -> `md`."""
    stem, dot, suffix = name.rpartition(".")
    return suffix.lower() if stem and dot and suffix.isalnum() else BINARY_FORMAT


def _new_body() -> str:
    """Where the body of a new file will lie among the blobs."""
    return f"{FOLDER}/{new_id('')}"


def _values(stored: StoredFile) -> dict[str, Any]:
    values = {name: getattr(stored, name) for name in stored.__struct_fields__ if name != "source"}
    source = stored.source
    return values | {
        "source_tool": source.tool,
        "source_round": source.round,
        "source_turn": source.turn,
    }


def _stored(row: Row[Any]) -> StoredFile:
    values = dict(row._mapping)
    del values["sequence"], values["body"]
    tool, round, turn = (values.pop(f"source_{name}") for name in ("tool", "round", "turn"))
    return StoredFile(source=FileSource(tool, round, turn), **values)
