"""The streams of background responses, written down as they go so that they can be read again."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, bindparam, insert, select, update

from penstock.store.records import EventChunk
from penstock.store.response_quota import ResponseQuota
from penstock.store.sql.database import Database
from penstock.store.sql.schema import response_events, responses

_TABLE: Final = response_events.c
_APPEND: Final = insert(response_events)
# Whoever deletes the response meanwhile waits, and then finds what was appended.
_HOLD: Final = (
    update(responses)
    .where(responses.c.id == bindparam("whose"))
    .values(size_bytes=responses.c.size_bytes + bindparam("added"))
)
_READ: Final = (
    select(_TABLE.first, _TABLE.following, _TABLE.frames)
    .where(_TABLE.response_id == bindparam("whose"), _TABLE.following > bindparam("wanted"))
    .order_by(_TABLE.first)
)


class ResponseEvents:
    """Any process may read a stream; the owner of its response writes it."""

    def __init__(self, database: Database, quota: ResponseQuota) -> None:
        self._database = database
        self._quota = quota

    async def append(self, response_id: str, chunk: EventChunk) -> None:
        """Keep more events of a response; none of one that is gone."""
        values = {"response_id": response_id, **chunk._asdict()}

        def write(connection: Connection) -> None:
            held = {"whose": response_id, "added": len(chunk.frames)}
            if connection.execute(_HOLD, held).rowcount > 0:
                connection.execute(_APPEND, values)

        await self._quota.grow(response_id, len(chunk.frames), write)

    async def read(self, response_id: str, wanted: int) -> list[EventChunk]:
        """What there is from the event with the number `wanted` on; the first chunk may begin
        before it."""
        whose = {"whose": response_id, "wanted": wanted}
        rows = await self._database.read(lambda c: c.execute(_READ, whose).all())
        return [EventChunk(*row) for row in rows]
