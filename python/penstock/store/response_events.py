"""The recorded streams of background responses. Clients can read a stream again."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, bindparam, insert, select, update

from penstock.store.records import EventChunk
from penstock.store.response_quota import ResponseQuota
from penstock.store.sql.database import Database
from penstock.store.sql.schema import response_events, responses

_TABLE: Final = response_events.c
_APPEND: Final = insert(response_events)
# Locks the response's row. A concurrent delete of the response waits for this transaction and then
# also deletes the events that it adds.
_LOCK: Final = (
    update(responses)
    .where(responses.c.id == bindparam("response"))
    .values(size_bytes=responses.c.size_bytes + bindparam("added"))
)
_READ: Final = (
    select(_TABLE.first, _TABLE.following, _TABLE.frames)
    .where(_TABLE.response_id == bindparam("response"), _TABLE.following > bindparam("start"))
    .order_by(_TABLE.first)
)


class ResponseEvents:
    """Stores the event streams of the responses of all API processes. Any process may read a
    stream; only the response's owner writes it."""

    def __init__(self, database: Database, quota: ResponseQuota) -> None:
        self._database = database
        self._quota = quota

    async def append(self, response_id: str, chunk: EventChunk) -> None:
        """Append a chunk of events to the stream of a response. Does nothing if the response was
        deleted."""
        values = {"response_id": response_id, **chunk._asdict()}

        def write(connection: Connection) -> None:
            locked = {"response": response_id, "added": len(chunk.frames)}
            if connection.execute(_LOCK, locked).rowcount > 0:
                connection.execute(_APPEND, values)

        await self._quota.grow(response_id, len(chunk.frames), write)

    async def read(self, response_id: str, start: int) -> list[EventChunk]:
        """Return the stored chunks that contain the events from number `start` on. The first chunk
        may also contain earlier events."""
        values = {"response": response_id, "start": start}
        rows = await self._database.read(lambda c: c.execute(_READ, values).all())
        return [EventChunk(*row) for row in rows]
