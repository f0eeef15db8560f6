"""Stored files: metadata in database rows, contents (bodies) in Blobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, BinaryIO, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select

from penstock.base.errors import ServiceError
from penstock.base.ids import new_id
from penstock.store.blobs import Blobs, BlobWriter
from penstock.store.clock import Clock
from penstock.store.errors import FileElided, FileFailed, file_not_found, shorten
from penstock.store.file_record import file_record
from penstock.store.records import FileSource, NewFile, StoredFile
from penstock.store.retention import Retention, delete_oldest
from penstock.store.sql.database import Database
from penstock.store.sql.faults import translated_faults
from penstock.store.sql.schema import files

log = logging.getLogger(__name__)

FOLDER: Final = "files"
# An upload collects this number of bytes before it writes them in a thread.
WRITE_BYTES: Final = 1024 * 1024
READ_BYTES: Final = 256 * 1024
NO_BODY: Final = ""

_TABLE: Final = files.c


class Files:
    """Stores the files of clients and tools."""

    def __init__(
        self, database: Database, blobs: Blobs, clock: Clock, retention: Retention
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._retention = retention

    async def create(self, new: NewFile) -> StoredFile:
        """Store a file, and delete the oldest files beyond the quota. If the id of `new` already
        exists, store nothing and return the existing file. Raises StorageFull and
        StorageUnavailable."""
        if new.id is not None:
            return await self._create_as(new.id, new)
        stored, body = self.record(new, new_id("file-")), NO_BODY
        if new.data is not None:
            body = _new_body()
            await asyncio.to_thread(self._write, body, new.data)
        return await self.insert(stored, body)

    async def begin(self) -> Upload:
        """Start to upload a file in pieces."""
        body = _new_body()
        return Upload(self, body, await asyncio.to_thread(self._begin, body))

    async def get(self, id: str) -> StoredFile | None:
        """Return the metadata of a file, or None if it is unknown, deleted or expired."""
        row = await self._row(id)
        return None if row is None else _file_of(row)

    async def read(self, id: str) -> bytes:
        """Return the body of a file. Raises NotFound (`file_not_found`), FileElided, FileFailed."""
        return b"".join([piece async for piece in await self.open(id)])

    async def open(self, id: str) -> AsyncGenerator[bytes, None]:
        """Return the body of a file in pieces. Raises the exceptions of `read`; the iteration may
        raise StorageUnavailable."""
        row = await self._row(id)
        if row is None:
            raise file_not_found(id)
        if row.code is not None:
            raise FileFailed(row.message or "the file could not be created", code=row.code)
        body = None if row.elided else await asyncio.to_thread(self._open, row.body)
        if body is None:
            raise FileElided(f"the content of file '{shorten(id)}' was not kept")
        return _pieces(body)

    async def list(
        self, container: str | None = None, *, session: str | None = None
    ) -> list[StoredFile]:
        """Return all files, or the files of a container or a session, newest first."""
        query = select(files).where(self._alive())
        if container is not None:
            query = query.where(_TABLE.container_id == container)
        if session is not None:
            query = query.where(_TABLE.session == session)
        query = query.order_by(_TABLE.sequence.desc())
        rows = await self._database.read(lambda c: c.execute(query).all())
        return [_file_of(row) for row in rows]

    async def delete(self, id: str) -> bool:
        """Delete a file. Returns False if it does not exist."""
        change = delete(files).where(_TABLE.id == id, self._alive()).returning(_TABLE.body)
        body = await self._database.write(lambda c: c.execute(change).scalar_one_or_none())
        if body is None:
            return False
        await asyncio.to_thread(self._delete_bodies, [body])
        return True

    async def insert(self, stored: StoredFile, body: str) -> StoredFile:
        """Insert the row of a file whose body has already been written, and delete the oldest files
        beyond the quota. `body`: the name of the body in Blobs."""
        try:
            dropped = await self._database.write(partial(self._insert, stored=stored, body=body))
        except ServiceError:
            await asyncio.to_thread(self._delete_bodies, [body])
            raise
        if dropped:
            await asyncio.to_thread(self._delete_bodies, dropped)
        return stored

    async def _create_as(self, id: str, new: NewFile) -> StoredFile:
        """Store a file with a given id. The row is inserted before the body is written, so that
        only one of several concurrent calls creates the file; the others return its metadata."""
        stored = self.record(new, id)
        body = NO_BODY if new.data is None else _new_body()
        expired = delete(files).where(_TABLE.id == id, _TABLE.expires_at <= stored.created_at)
        query = select(files).where(_TABLE.id == id)

        def work(connection: Connection) -> StoredFile | Sequence[str]:
            connection.execute(expired)  # the sweep has not deleted it yet
            row = connection.execute(query).one_or_none()
            return self._insert(connection, stored, body) if row is None else _file_of(row)

        result = await self._database.write(work)
        if isinstance(result, StoredFile):
            return result
        await asyncio.to_thread(self._delete_bodies, result)
        if new.data is not None:
            try:
                await asyncio.to_thread(self._write, body, new.data)
            except ServiceError:
                await self.delete(id)
                raise
        return stored

    async def _row(self, id: str) -> Row[Any] | None:
        query = select(files).where(_TABLE.id == id, self._alive())
        return await self._database.read(lambda c: c.execute(query).one_or_none())

    def _insert(self, connection: Connection, stored: StoredFile, body: str) -> Sequence[str]:
        """Insert the row of a file. Returns the names of the bodies of files that were deleted to
        stay within the quota."""
        connection.execute(insert(files).values(_values(stored) | {"body": body}))
        return delete_oldest(connection, self._retention)

    def record(self, new: NewFile, id: str) -> StoredFile:
        """Return the metadata for a new file, with a sanitized name."""
        return file_record(new, id, self._clock(), self._retention.expiry_s)

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

    def _delete_bodies(self, bodies: Iterable[str]) -> None:
        """Delete bodies whose rows are already deleted. If a deletion fails, log it; a sweep
        deletes that body later."""
        for body in filter(None, bodies):
            try:
                self._blobs.delete(body)
            except OSError as error:
                log.warning("blobs: %s", error)

    def _alive(self) -> ColumnElement[bool]:
        return _TABLE.expires_at > self._clock()


class Upload:
    """Uploads one file in pieces. The caller must end with `finish` or `abort`."""

    def __init__(self, owner: Files, body: str, writer: BlobWriter) -> None:
        self._owner = owner
        self._body = body
        self._writer = writer
        self._waiting = bytearray()

    async def write(self, chunk: bytes) -> None:
        """Append `chunk` to the body. Raises StorageFull and StorageUnavailable."""
        self._waiting += chunk
        if len(self._waiting) >= WRITE_BYTES:
            await asyncio.to_thread(self._with_translated_faults, self._write_out)

    async def finish(self, new: NewFile) -> StoredFile:
        """Complete the upload and store the file with the metadata in `new`; `new.data` must be
        None. Raises StorageFull and StorageUnavailable."""
        await asyncio.to_thread(self._with_translated_faults, self._commit)
        stored = self._owner.record(new, new_id("file-"))
        whole = msgspec.structs.replace(stored, size_bytes=self._writer.size_bytes, elided=False)
        return await self._owner.insert(whole, self._body)

    async def abort(self) -> None:
        """Delete the data written so far."""
        await asyncio.to_thread(self._writer.abort)

    def _write_out(self) -> None:
        self._writer.write(bytes(self._waiting))
        self._waiting.clear()

    def _commit(self) -> None:
        self._write_out()
        self._writer.commit()

    def _with_translated_faults(self, work: Callable[[], None]) -> None:
        with translated_faults():
            work()


async def _pieces(body: BinaryIO) -> AsyncGenerator[bytes, None]:
    """Yield a body in pieces. Close it at the end, or when the generator is closed."""

    def read() -> bytes:
        with translated_faults():
            return body.read(READ_BYTES)

    try:
        while piece := await asyncio.to_thread(read):
            yield piece
    finally:
        body.close()


def _new_body() -> str:
    """Return the name in Blobs for a new body."""
    return f"{FOLDER}/{new_id('')}"


def _values(stored: StoredFile) -> dict[str, Any]:
    values = {name: getattr(stored, name) for name in stored.__struct_fields__ if name != "source"}
    source = stored.source
    return values | {
        "source_tool": source.tool,
        "source_round": source.round,
        "source_turn": source.turn,
    }


def _file_of(row: Row[Any]) -> StoredFile:
    values = dict(row._mapping)
    del values["sequence"], values["body"]
    tool, round, turn = (values.pop(f"source_{name}") for name in ("tool", "round", "turn"))
    return StoredFile(source=FileSource(tool, round, turn), **values)
