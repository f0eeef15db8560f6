"""Stored responses. Any API process may read, delete or cancel a response; only its owner runs
it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from penstock.store.clock import Clock
from penstock.store.records import UNFINISHED, ResponseStatus, StoredResponse
from penstock.store.response_quota import ResponseQuota, delete_events_of
from penstock.store.retention import Retention
from penstock.store.sql.database import Database
from penstock.store.sql.schema import responses

_TABLE: Final = responses.c

# SQL statements are built once, because building a statement takes as long as executing it.
_INSERT: Final = insert(responses)
_GET: Final = select(responses).where(
    _TABLE.id == bindparam("response_id"),
    or_(_TABLE.expires_at.is_(None), _TABLE.expires_at > bindparam("now")),
)
_UNFINISHED: Final = _TABLE.status.in_(UNFINISHED)
_OF_OWNER: Final = and_(_TABLE.owner == bindparam("owner_id"), _UNFINISHED)
_GROWN: Final = _TABLE.size_bytes + bindparam("added") - func.length(_TABLE.body)
_UPDATE: Final = update(responses).where(_TABLE.id == bindparam("response_id"), _UNFINISHED)
_REPLACE_BODY: Final = _UPDATE.values(size_bytes=_GROWN)
_REPLACE_BOTH: Final = _UPDATE.values(size_bytes=_GROWN - func.length(_TABLE.conversation))
_BEAT: Final = update(responses).where(_OF_OWNER).values(heartbeat_at=bindparam("now"))
_ACTIVE_IDS: Final = select(_TABLE.id).where(_OF_OWNER, ~_TABLE.cancel_requested)


class Responses:
    """Stores the responses of all API processes."""

    def __init__(
        self, database: Database, clock: Clock, retention: Retention, quota: ResponseQuota
    ) -> None:
        self._database = database
        self._clock = clock
        self._retention = retention
        self._quota = quota

    async def create(self, response: StoredResponse) -> None:
        """Store a new response, and delete the oldest responses beyond the quota."""
        values = {name: getattr(response, name) for name in response.__struct_fields__}
        values["heartbeat_at"] = response.heartbeat_at or self._clock()
        if response.expires_at is None and self._retention.expiry_s:
            values["expires_at"] = response.created_at + self._retention.expiry_s
        values["size_bytes"] = len(response.body) + len(response.conversation)
        await self._quota.grow(
            response.id, values["size_bytes"], lambda c: c.execute(_INSERT, values)
        )

    async def update(
        self, id: str, *, status: ResponseStatus, body: bytes, conversation: bytes | None = None
    ) -> bool:
        """Update an unfinished response. Returns False if the response was deleted or has already
        finished."""
        values = {"response_id": id, "status": status, "body": body, "heartbeat_at": self._clock()}
        change, added = _REPLACE_BODY, len(body)
        if conversation is not None:
            values["conversation"] = conversation
            change, added = _REPLACE_BOTH, added + len(conversation)
        values["added"] = added
        return await self._quota.grow(id, added, lambda c: c.execute(change, values).rowcount > 0)

    async def get(self, id: str) -> StoredResponse | None:
        """Return a response, or None if it is unknown, deleted or expired."""
        values = {"response_id": id, "now": self._clock()}
        row = await self._database.read(lambda c: c.execute(_GET, values).one_or_none())
        return None if row is None else _record(row)

    async def delete(self, id: str) -> bool:
        """Delete a response and its events. Returns False if it does not exist."""
        change = delete(responses).where(_TABLE.id == id, self._alive())

        def work(connection: Connection) -> bool:
            found = connection.execute(change).rowcount > 0
            # The events are deleted after the row, because another process may append events while
            # this transaction waits for the row's lock.
            delete_events_of(connection, id)
            return found

        return await self._database.write(work)

    async def request_cancel(self, id: str) -> StoredResponse | None:
        """Ask the owner of an unfinished background response to stop it. Any other response is not
        changed. Returns the response, or None if it does not exist."""
        query = select(responses).where(_TABLE.id == id, self._alive())
        change = (
            update(responses)
            .where(_TABLE.id == id, _TABLE.background, _UNFINISHED)
            .values(cancel_requested=True)
        )

        def work(connection: Connection) -> Row[Any] | None:
            connection.execute(change)
            return connection.execute(query).one_or_none()

        row = await self._database.write(work)
        return None if row is None else _record(row)

    async def heartbeat(self, owner: str) -> None:
        """Set the heartbeat of all unfinished responses of `owner` to the current time."""
        beat = {"owner_id": owner, "now": self._clock()}
        await self._database.write(lambda c: c.execute(_BEAT, beat))

    async def active_ids(self, owner: str) -> set[str]:
        """Return the ids of the owner's unfinished responses, without responses that another
        process has cancelled, deleted or ended."""
        values = {"owner_id": owner}
        return await self._database.read(lambda c: set(c.execute(_ACTIVE_IDS, values).scalars()))

    async def fail_orphans(
        self, owner: str, stale_s: int, body_of: Callable[[StoredResponse], bytes]
    ) -> int:
        """Mark the unfinished responses of a dead owner failed, if their heartbeat is stale.
        Returns the number of marked responses.

        `owner`: the id of an API process that the caller knows to be dead; a stale heartbeat alone
        may also result from a clock that was set forward.
        `stale_s`: a heartbeat is stale if it differs from the current time by more than this number
        of seconds. A heartbeat in the future is stale too: the clock was set back after it was
        written.
        `body_of`: returns the new body of a response.
        """
        now = self._clock()
        stale = or_(_TABLE.heartbeat_at < now - stale_s, _TABLE.heartbeat_at > now + stale_s)
        query, values = select(responses).where(_OF_OWNER, stale), {"owner_id": owner}
        rows = await self._database.read(lambda c: c.execute(query, values).all())
        orphans = [(row.id, body_of(_record(row))) for row in rows]

        def work(connection: Connection) -> int:
            failed = 0
            for id, body in orphans:
                change = update(responses).where(_TABLE.id == id, _UNFINISHED, stale)
                failing = change.values(status="failed", body=body, size_bytes=_GROWN)
                failed += connection.execute(failing, {"added": len(body)}).rowcount
            return failed

        return await self._database.write(work) if orphans else 0

    def _alive(self) -> ColumnElement[bool]:
        return or_(_TABLE.expires_at.is_(None), _TABLE.expires_at > self._clock())


def _record(row: Row[Any]) -> StoredResponse:
    values = dict(row._mapping)
    del values["size_bytes"]
    return StoredResponse(**values)
