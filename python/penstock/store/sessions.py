"""Sessions: conversations that go on by their id, one run at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Update,
    and_,
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
from penstock.store.database import Database
from penstock.store.records import StoredSession
from penstock.store.retention import Retention, drop_oldest
from penstock.store.schema import sessions

log = logging.getLogger(__name__)

# A run that says nothing for so long has died with its process.
LEASE_S: Final = 60
RENEWAL_S: Final = 20.0

_TABLE: Final = sessions.c
_decode = msgspec.msgpack.Decoder(tuple[Message, ...]).decode
_encode = msgspec.msgpack.Encoder().encode


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

    async def keep(self, messages: tuple[Message, ...]) -> bool:
        """Keep the whole conversation. False: the session was deleted or replaced meanwhile, and
        stays so."""
        return await self._owner.keep_held(self._id, self._holder, messages)


class Sessions:
    """Sessions of all API processes."""

    def __init__(self, database: Database, clock: Clock, retention: Retention) -> None:
        self._database = database
        self._clock = clock
        self._retention = retention

    async def get(self, id: str) -> StoredSession | None:
        """A session; None: unknown, deleted or expired, or its first run still goes on."""
        wanted = select(sessions).where(_TABLE.id == id, self._alive())
        row = await self._database.read(lambda c: c.execute(wanted).one_or_none())
        if row is None or row.messages is None:
            return None
        return StoredSession(id=id, created_at=row.created_at, messages=_decode(row.messages))

    async def put(self, id: str, messages: tuple[Message, ...]) -> None:
        """Import a session in place of any with that id, also of one that a run is held in."""
        values = self._values(_encode(messages)) | {"lease_holder": None, "lease_until": None}
        await self._database.write(lambda c: self._replace(c, id, values))

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
        messages = await self._database.write(lambda c: self._acquire(c, id, holder))
        renewing = asyncio.create_task(self._renew(id, holder))
        try:
            yield HeldSession(self, id, holder, messages)
        finally:
            renewing.cancel()
            await self._release(id, holder)

    async def keep_held(self, id: str, holder: str, messages: tuple[Message, ...]) -> bool:
        """`HeldSession.keep`."""
        values = self._values(_encode(messages))
        change = update(sessions).where(_held(id, holder)).values(values)

        def work(connection: Connection) -> bool:
            kept = connection.execute(change).rowcount > 0
            drop_oldest(connection, self._retention)
            return kept

        return await self._database.write(work)

    def _acquire(self, connection: Connection, id: str, holder: str) -> tuple[Message, ...]:
        now = self._clock()
        lease = self._lease(now) | {"lease_holder": holder}
        connection.execute(delete(sessions).where(_TABLE.id == id, _TABLE.expires_at <= now))
        free = or_(_TABLE.lease_until.is_(None), _TABLE.lease_until <= now)
        take = update(sessions).where(_TABLE.id == id, free).values(lease)
        row = connection.execute(take.returning(_TABLE.messages)).one_or_none()
        if row is not None:
            return () if row.messages is None else _decode(row.messages)
        try:
            values = self._values(None) | lease | {"id": id, "created_at": now}
            connection.execute(insert(sessions).values(values))
        except IntegrityError:
            raise SessionBusy from None
        return ()

    async def _renew(self, id: str, holder: str) -> None:
        """While its run goes on, a session neither becomes free nor expires."""
        while True:
            await asyncio.sleep(RENEWAL_S)
            longer = update(sessions).where(_held(id, holder)).values(self._lease(self._clock()))
            with contextlib.suppress(ServiceError):  # logged; the next one may succeed
                await self._database.write(partial(_execute, statement=longer))

    async def _release(self, id: str, holder: str) -> None:
        """Let go; of a session in which nothing was kept, nothing stays."""
        empty = delete(sessions).where(_held(id, holder), _TABLE.messages.is_(None))
        free = update(sessions).where(_held(id, holder))
        free = free.values(lease_holder=None, lease_until=None)

        def work(connection: Connection) -> None:
            connection.execute(empty)
            connection.execute(free)

        with contextlib.suppress(ServiceError):  # logged; the lease runs out by itself
            await self._database.write(work)

    def _replace(self, connection: Connection, id: str, values: dict[str, Any]) -> None:
        change = update(sessions).where(_TABLE.id == id).values(values)
        if connection.execute(change).rowcount == 0:
            new = values | {"id": id, "created_at": self._clock()}
            connection.execute(insert(sessions).values(new))
        drop_oldest(connection, self._retention)

    def _values(self, messages: bytes | None) -> dict[str, Any]:
        return {
            "messages": messages,
            "used": _next_use(),
            "expires_at": self._clock() + self._retention.expiry_s,
        }

    def _lease(self, now: int) -> dict[str, Any]:
        return {"lease_until": now + LEASE_S, "expires_at": now + self._retention.expiry_s}

    def _alive(self) -> ColumnElement[bool]:
        return _TABLE.expires_at > self._clock()


def _execute(connection: Connection, statement: Update) -> None:
    connection.execute(statement)


def _held(id: str, holder: str) -> ColumnElement[bool]:
    return and_(_TABLE.id == id, _TABLE.lease_holder == holder)


def _next_use() -> ScalarSelect[int]:
    other = sessions.alias("other")
    return select(func.coalesce(func.max(other.c.used), 0) + 1).scalar_subquery()
