"""Sessions: stored conversations that requests continue. At most one run uses a session at a
time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy import (
    Connection,
    Update,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from penstock.base.errors import Conflict, ServiceError
from penstock.base.ids import new_id
from penstock.dialog import Message
from penstock.store.clock import Clock
from penstock.store.records import StoredSession
from penstock.store.retention import Retention, delete_oldest
from penstock.store.sql.database import Database
from penstock.store.sql.schema import sessions

log = logging.getLogger(__name__)

# Seconds. If a lease was not renewed for this long, the process of its run has died.
LEASE_S: Final = 60
RENEWAL_S: Final = 20.0
# Seconds. A lease that ends later than a new lease could end was granted before the clock was set
# back.
CLOCK_SLACK_S: Final = 60

_TABLE: Final = sessions.c
_OTHER: Final = sessions.alias("other")
_NEXT_USE: Final = select(func.coalesce(func.max(_OTHER.c.used), 0) + 1).scalar_subquery()

# SQL statements are built once, because building a statement takes as long as executing it.
_SESSION: Final = _TABLE.id == bindparam("session_id")
_LEASED: Final = and_(_SESSION, _TABLE.lease_holder == bindparam("holder"))
_GET: Final = select(sessions).where(_SESSION, _TABLE.expires_at > bindparam("now"))
_DELETE_EXPIRED: Final = delete(sessions).where(_SESSION, _TABLE.expires_at <= bindparam("now"))
_LEASE: Final[dict[str, Any]] = {
    "lease_until": bindparam("until"),
    "expires_at": bindparam("expiry"),
}
_NO_LEASE: Final[dict[str, Any]] = {"lease_holder": None, "lease_until": None}
_FREE: Final = or_(
    _TABLE.lease_until.is_(None),
    _TABLE.lease_until <= bindparam("now"),
    _TABLE.lease_until - CLOCK_SLACK_S > bindparam("until"),
)
_TAKE: Final = (
    update(sessions)
    .where(_SESSION, _FREE)
    .values(lease_holder=bindparam("holder"), **_LEASE)
    .returning(_TABLE.messages)
)
_INSERT: Final = insert(sessions).values(
    id=bindparam("session_id"),
    used=_NEXT_USE,
    created_at=bindparam("now"),
    messages=bindparam("conversation"),
    lease_holder=bindparam("holder"),
    **_LEASE,
)
_CONVERSATION: Final[dict[str, Any]] = {
    "messages": bindparam("conversation"),
    "used": _NEXT_USE,
    "expires_at": bindparam("expiry"),
    **_NO_LEASE,
}
_SAVE: Final = update(sessions).where(_LEASED).values(_CONVERSATION)
_REPLACE: Final = update(sessions).where(_SESSION).values(_CONVERSATION)
_RENEW: Final = update(sessions).where(_LEASED).values(_LEASE)
_DELETE_EMPTY: Final = delete(sessions).where(_LEASED, _TABLE.messages.is_(None))
_RELEASE: Final = update(sessions).where(_LEASED).values(_NO_LEASE)
_decode = msgspec.msgpack.Decoder(tuple[Message, ...]).decode
_encode = msgspec.msgpack.Encoder().encode

_T = TypeVar("_T")


class SessionBusy(Conflict):
    """409: another run of the session is in progress."""

    code = "session_busy"

    def __init__(self) -> None:
        super().__init__(
            "another request of this session is in progress; wait until it has ended",
            field="session_id",
        )


class LeasedSession:
    """A session that is leased to one run.

    `owner`: the store of sessions.
    `holder`: the id of the lease.
    `messages`: the conversation before the run.
    """

    def __init__(self, owner: Sessions, id: str, holder: str, messages: tuple[Message, ...]):
        self._owner = owner
        self._id = id
        self._holder = holder
        self.messages = messages
        self.released = False

    async def save(self, messages: tuple[Message, ...]) -> bool:
        """Store the whole conversation and release the lease; call at the end of the run. Returns
        False and stores nothing if the session was deleted or replaced during the run."""
        saved = await self._owner.save_leased(self._id, self._holder, messages)
        self.released = True
        return saved


class Sessions:
    """Stores the sessions of all API processes."""

    def __init__(self, database: Database, clock: Clock, retention: Retention) -> None:
        self._database = database
        self._clock = clock
        self._retention = retention
        # Lease id -> session id, for leases that could not be released, for example because the
        # disk was full. The next write to any session releases them.
        self._unreleased: dict[str, str] = {}

    async def get(self, id: str) -> StoredSession | None:
        """Return a session. Returns None if the session is unknown, deleted or expired, or if its
        first run has not ended."""
        values = {"session_id": id, "now": self._clock()}
        row = await self._database.read(lambda c: c.execute(_GET, values).one_or_none())
        if row is None or row.messages is None:
            return None
        return StoredSession(id=id, created_at=row.created_at, messages=_decode(row.messages))

    async def put(self, id: str, messages: tuple[Message, ...]) -> None:
        """Store a session. Replaces any session with this id, even if a run has leased it."""
        now = self._clock()
        values = {
            "session_id": id,
            "conversation": _encode(messages),
            "expiry": now + self._retention.expiry_s,
        }
        new = values | {"now": now, "holder": None, "until": None}

        def work(connection: Connection) -> None:
            if connection.execute(_REPLACE, values).rowcount == 0:
                connection.execute(_INSERT, new)
            delete_oldest(connection, self._retention)

        await self._database.write(work)

    async def delete(self, id: str) -> bool:
        """Delete a session. Returns False if it does not exist. A run that uses the session
        continues, but its answer is not saved."""
        change = delete(sessions).where(_TABLE.id == id)
        return await self._database.write(lambda c: c.execute(change).rowcount > 0)

    @asynccontextmanager
    async def lease(self, id: str) -> AsyncIterator[LeasedSession]:
        """Lease a session to one run until the block ends. An unknown id starts a new session.

        Raises SessionBusy if another run, in any process, has the lease.
        """
        holder = new_id("")
        messages = await self._acquire(id, holder)
        renewing = asyncio.create_task(self._renew(id, holder))
        session = LeasedSession(self, id, holder, messages)
        try:
            yield session
        finally:
            renewing.cancel()
            if not session.released:
                await self._release(id, holder)

    async def save_leased(self, id: str, holder: str, messages: tuple[Message, ...]) -> bool:
        """Implement `LeasedSession.save`."""
        values = {
            "session_id": id,
            "holder": holder,
            "conversation": _encode(messages),
            "expiry": self._clock() + self._retention.expiry_s,
        }

        def work(connection: Connection) -> bool:
            saved = connection.execute(_SAVE, values).rowcount > 0
            delete_oldest(connection, self._retention)
            return saved

        return await self._write(work)

    async def _acquire(self, id: str, holder: str) -> tuple[Message, ...]:
        """Acquire the lease of a session and return the messages so far. If the caller is
        cancelled, wait until the write has completed and release the lease again."""
        acquiring = asyncio.ensure_future(self._write(lambda c: self._take_lease(c, id, holder)))
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            await asyncio.wait((acquiring,))
            if acquiring.exception() is None:
                await self._release(id, holder)
            raise

    def _take_lease(self, connection: Connection, id: str, holder: str) -> tuple[Message, ...]:
        lease = self._lease(id, holder)
        connection.execute(_DELETE_EXPIRED, {"session_id": id, "now": lease["now"]})
        row = connection.execute(_TAKE, lease).one_or_none()
        if row is not None:
            return () if row.messages is None else _decode(row.messages)
        try:
            connection.execute(_INSERT, lease | {"conversation": None})
        except IntegrityError:
            raise SessionBusy from None
        return ()

    async def _renew(self, id: str, holder: str) -> None:
        """Renew the lease and the expiry of a session periodically, until the task is cancelled."""
        while True:
            await asyncio.sleep(RENEWAL_S)
            lease = self._lease(id, holder)
            del lease["now"]
            with contextlib.suppress(ServiceError):  # logged; the next attempt may succeed
                await self._database.write(partial(_execute, statement=_RENEW, values=lease))

    async def _release(self, id: str, holder: str) -> None:
        """Release the lease of a session. If no conversation was saved, delete the session."""
        self._unreleased[holder] = id
        with contextlib.suppress(ServiceError):  # logged; if no write succeeds, the lease expires
            await self._write(lambda connection: None)

    async def _write(self, work: Callable[[Connection], _T]) -> _T:
        """Run `work` in a transaction that first releases the leases in `_unreleased`."""
        unreleased = dict(self._unreleased)

        def release_and_work(connection: Connection) -> _T:
            for holder, id in unreleased.items():
                leased = {"session_id": id, "holder": holder}
                connection.execute(_DELETE_EMPTY, leased)
                connection.execute(_RELEASE, leased)
            return work(connection)

        result = await self._database.write(release_and_work)
        for holder in unreleased:
            self._unreleased.pop(holder, None)
        return result

    def _lease(self, id: str, holder: str) -> dict[str, Any]:
        now = self._clock()
        return {
            "session_id": id,
            "holder": holder,
            "now": now,
            "until": now + LEASE_S,
            "expiry": now + self._retention.expiry_s,
        }


def _execute(connection: Connection, statement: Update, values: dict[str, Any]) -> None:
    connection.execute(statement, values)
