"""Sessions: conversations that go on by their id, one run at a time."""

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
from penstock.store.retention import Retention, drop_oldest
from penstock.store.sql.database import Database
from penstock.store.sql.schema import sessions

log = logging.getLogger(__name__)

# A run that says nothing for so long has died with its process.
LEASE_S: Final = 60
RENEWAL_S: Final = 20.0
# A lease that ends later than any that is given now was given before the clock was put back.
CLOCK_SLACK_S: Final = 60

_TABLE: Final = sessions.c
_OTHER: Final = sessions.alias("other")
_NEXT_USE: Final = select(func.coalesce(func.max(_OTHER.c.used), 0) + 1).scalar_subquery()

# Built once: to build a statement costs as much as to run it.
_WANTED: Final = _TABLE.id == bindparam("wanted")
_HELD: Final = and_(_WANTED, _TABLE.lease_holder == bindparam("holder"))
_GET: Final = select(sessions).where(_WANTED, _TABLE.expires_at > bindparam("now"))
_DROP_EXPIRED: Final = delete(sessions).where(_WANTED, _TABLE.expires_at <= bindparam("now"))
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
    .where(_WANTED, _FREE)
    .values(lease_holder=bindparam("holder"), **_LEASE)
    .returning(_TABLE.messages)
)
_INSERT: Final = insert(sessions).values(
    id=bindparam("wanted"),
    used=_NEXT_USE,
    created_at=bindparam("now"),
    messages=bindparam("said"),
    lease_holder=bindparam("holder"),
    **_LEASE,
)
_SAID: Final[dict[str, Any]] = {
    "messages": bindparam("said"),
    "used": _NEXT_USE,
    "expires_at": bindparam("expiry"),
    **_NO_LEASE,
}
_KEEP: Final = update(sessions).where(_HELD).values(_SAID)
_REPLACE: Final = update(sessions).where(_WANTED).values(_SAID)
_RENEW: Final = update(sessions).where(_HELD).values(_LEASE)
_DROP_EMPTY: Final = delete(sessions).where(_HELD, _TABLE.messages.is_(None))
_RELEASE: Final = update(sessions).where(_HELD).values(_NO_LEASE)
_decode = msgspec.msgpack.Decoder(tuple[Message, ...]).decode
_encode = msgspec.msgpack.Encoder().encode

_T = TypeVar("_T")


class SessionBusy(Conflict):
    """409: a run of the session is going on."""

    code = "session_busy"

    def __init__(self) -> None:
        super().__init__(
            "another request is being answered in this session; wait until it has ended",
            field="session_id",
        )


class HeldSession:
    """A session while one run has it. `messages`: what was said before."""

    def __init__(self, owner: Sessions, id: str, holder: str, messages: tuple[Message, ...]):
        self._owner = owner
        self._id = id
        self._holder = holder
        self.messages = messages
        self.released = False

    async def keep(self, messages: tuple[Message, ...]) -> bool:
        """Keep the whole conversation, and let go of the session: the end of the run. False: it was
        deleted or replaced meanwhile, and stays so."""
        kept = await self._owner.keep_held(self._id, self._holder, messages)
        self.released = True
        return kept


class Sessions:
    """Sessions of all API processes."""

    def __init__(self, database: Database, clock: Clock, retention: Retention) -> None:
        self._database = database
        self._clock = clock
        self._retention = retention
        # Holders, and their sessions, that are gone but could not say so, as where the disk is
        # full. What is written next of any session says it.
        self._gone: dict[str, str] = {}

    async def get(self, id: str) -> StoredSession | None:
        """A session; None: unknown, deleted or expired, or its first run still goes on."""
        wanted = {"wanted": id, "now": self._clock()}
        row = await self._database.read(lambda c: c.execute(_GET, wanted).one_or_none())
        if row is None or row.messages is None:
            return None
        return StoredSession(id=id, created_at=row.created_at, messages=_decode(row.messages))

    async def put(self, id: str, messages: tuple[Message, ...]) -> None:
        """Import a session in place of any with that id, also of one that a run is held in."""
        now = self._clock()
        said = {"wanted": id, "said": _encode(messages), "expiry": now + self._retention.expiry_s}
        new = said | {"now": now, "holder": None, "until": None}

        def work(connection: Connection) -> None:
            if connection.execute(_REPLACE, said).rowcount == 0:
                connection.execute(_INSERT, new)
            drop_oldest(connection, self._retention)

        await self._database.write(work)

    async def delete(self, id: str) -> bool:
        """Whether there was one to delete. A run in it goes on, and its end is not kept."""
        change = delete(sessions).where(_TABLE.id == id)
        return await self._database.write(lambda c: c.execute(change).rowcount > 0)

    @asynccontextmanager
    async def held(self, id: str) -> AsyncIterator[HeldSession]:
        """Hold a session for one run, until the block ends; an unknown id begins a new session.

        Raises SessionBusy while another run holds it, in whatever process.
        """
        holder = new_id("")
        messages = await self._acquired(id, holder)
        renewing = asyncio.create_task(self._renew(id, holder))
        session = HeldSession(self, id, holder, messages)
        try:
            yield session
        finally:
            renewing.cancel()
            if not session.released:
                await self._release(id, holder)

    async def keep_held(self, id: str, holder: str, messages: tuple[Message, ...]) -> bool:
        """`HeldSession.keep`."""
        said = {
            "wanted": id,
            "holder": holder,
            "said": _encode(messages),
            "expiry": self._clock() + self._retention.expiry_s,
        }

        def work(connection: Connection) -> bool:
            kept = connection.execute(_KEEP, said).rowcount > 0
            drop_oldest(connection, self._retention)
            return kept

        return await self._write(work)

    async def _acquired(self, id: str, holder: str) -> tuple[Message, ...]:
        """Take the lease; what was said before. A write that has begun goes on when its caller is
        cancelled, so what it took is given back then."""
        acquiring = asyncio.ensure_future(self._write(lambda c: self._acquire(c, id, holder)))
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            await asyncio.wait((acquiring,))
            if acquiring.exception() is None:
                await self._release(id, holder)
            raise

    def _acquire(self, connection: Connection, id: str, holder: str) -> tuple[Message, ...]:
        lease = self._lease(id, holder)
        connection.execute(_DROP_EXPIRED, {"wanted": id, "now": lease["now"]})
        row = connection.execute(_TAKE, lease).one_or_none()
        if row is not None:
            return () if row.messages is None else _decode(row.messages)
        try:
            connection.execute(_INSERT, lease | {"said": None})
        except IntegrityError:
            raise SessionBusy from None
        return ()

    async def _renew(self, id: str, holder: str) -> None:
        """While its run goes on, a session neither becomes free nor expires."""
        while True:
            await asyncio.sleep(RENEWAL_S)
            lease = self._lease(id, holder)
            del lease["now"]
            with contextlib.suppress(ServiceError):  # logged; the next one may succeed
                await self._database.write(partial(_execute, statement=_RENEW, values=lease))

    async def _release(self, id: str, holder: str) -> None:
        """Let go; of a session in which nothing was kept, nothing stays."""
        self._gone[holder] = id
        with contextlib.suppress(ServiceError):  # logged; if no write succeeds, the lease runs out
            await self._write(lambda connection: None)

    async def _write(self, work: Callable[[Connection], _T]) -> _T:
        """`Database.write`, after letting go for those who are gone."""
        gone = dict(self._gone)

        def whole(connection: Connection) -> _T:
            for holder, id in gone.items():
                held = {"wanted": id, "holder": holder}
                connection.execute(_DROP_EMPTY, held)
                connection.execute(_RELEASE, held)
            return work(connection)

        done = await self._database.write(whole)
        for holder in gone:
            self._gone.pop(holder, None)
        return done

    def _lease(self, id: str, holder: str) -> dict[str, Any]:
        now = self._clock()
        return {
            "wanted": id,
            "holder": holder,
            "now": now,
            "until": now + LEASE_S,
            "expiry": now + self._retention.expiry_s,
        }


def _execute(connection: Connection, statement: Update, values: dict[str, Any]) -> None:
    connection.execute(statement, values)
