"""How much is kept of responses and their events, and what goes beyond that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from sqlalchemy import Connection, delete, select

from penstock.store.retention import MOST_AT_ONCE, Retention, drop_oldest
from penstock.store.sql.database import Database
from penstock.store.sql.schema import response_events, responses

log = logging.getLogger(__name__)

# What is kept is counted anew after so much of its quota was written, by each process.
QUOTA_SHARE: Final = 16

_EVENTS: Final = response_events.c

_T = TypeVar("_T")


class ResponseQuota:
    """Whatever makes a response larger is written by it."""

    def __init__(self, database: Database, retention: Retention) -> None:
        self._database = database
        self._retention = retention
        self._uncounted_bytes = retention.most_bytes  # others have written before

    async def grow(self, id: str, size_bytes: int, work: Callable[[Connection], _T]) -> _T:
        """Run `work`, which writes about so much of a response or of its events, and delete the
        oldest responses beyond the quota now and then. What `work` returns."""
        self._uncounted_bytes += size_bytes
        if self._uncounted_bytes * QUOTA_SHARE <= self._retention.most_bytes:
            return await self._database.write(work)

        def work_and_count(connection: Connection) -> tuple[_T, int]:
            result = work(connection)
            gone = drop_oldest(connection, self._retention, id)
            for one in gone:
                drop_events_of(connection, one)
            return result, len(gone)

        result, dropped = await self._database.write(work_and_count)
        if dropped < MOST_AT_ONCE:
            self._uncounted_bytes = 0
        if dropped:
            log.warning("deleted the %d oldest responses: [store] max_responses_bytes", dropped)
        return result


def drop_events_of(connection: Connection, response_id: str) -> None:
    """Forget the events of one response."""
    connection.execute(delete(response_events).where(_EVENTS.response_id == response_id))


def drop_lost_events(connection: Connection) -> None:
    """Forget the events of responses that are gone."""
    known = select(responses.c.id)
    connection.execute(delete(response_events).where(_EVENTS.response_id.not_in(known)))
