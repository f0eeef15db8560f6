"""The limit on the bytes of all responses and their events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from sqlalchemy import Connection, delete, select

from penstock.store.retention import MAX_DELETIONS, Retention, delete_oldest
from penstock.store.sql.database import Database
from penstock.store.sql.schema import response_events, responses

log = logging.getLogger(__name__)

# A process sums the sizes of all responses again after it has written 1 / QUOTA_SHARE of the quota.
QUOTA_SHARE: Final = 16

_EVENTS: Final = response_events.c

_T = TypeVar("_T")


class ResponseQuota:
    """Keeps the total size of responses within the quota. Every write that enlarges a response must
    use `grow`."""

    def __init__(self, database: Database, retention: Retention) -> None:
        self._database = database
        self._retention = retention
        self._uncounted_bytes = retention.max_bytes  # the first write sums all sizes

    async def grow(self, id: str, size_bytes: int, work: Callable[[Connection], _T]) -> _T:
        """Run `work`, a write that adds about `size_bytes` to response `id`, and return its result.
        If enough bytes were written since the last check, also delete the oldest responses beyond
        the quota, except `id`."""
        self._uncounted_bytes += size_bytes
        if self._uncounted_bytes * QUOTA_SHARE <= self._retention.max_bytes:
            return await self._database.write(work)

        def work_and_count(connection: Connection) -> tuple[_T, int]:
            result = work(connection)
            deleted_ids = delete_oldest(connection, self._retention, id)
            for deleted_id in deleted_ids:
                delete_events_of(connection, deleted_id)
            return result, len(deleted_ids)

        result, num_deleted = await self._database.write(work_and_count)
        if num_deleted < MAX_DELETIONS:
            self._uncounted_bytes = 0
        if num_deleted:
            log.warning(
                "deleted the %d oldest responses to stay within [store] max_responses_bytes",
                num_deleted,
            )
        return result


def delete_events_of(connection: Connection, response_id: str) -> None:
    """Delete the events of a response."""
    connection.execute(delete(response_events).where(_EVENTS.response_id == response_id))


def delete_orphaned_events(connection: Connection) -> None:
    """Delete the events of responses that no longer exist."""
    known = select(responses.c.id)
    connection.execute(delete(response_events).where(_EVENTS.response_id.not_in(known)))
