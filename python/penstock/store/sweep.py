"""Deletes expired rows, and bodies without rows, which a crash may leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from sqlalchemy import Connection, select

from penstock.store import chat_attachments, files, skills
from penstock.store.blobs import Blobs
from penstock.store.clock import Clock
from penstock.store.response_quota import delete_orphaned_events
from penstock.store.retention import Retentions, delete_expired
from penstock.store.sql import schema
from penstock.store.sql.database import Database
from penstock.store.sql.faults import translated_faults

log = logging.getLogger(__name__)

# Seconds. A body without a row is an orphan once it is older than the longest possible upload.
ORPHAN_AGE_S: Final = 3600


class Sweep:
    """Cleans up the whole store. Several processes may do this at the same time."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        skill_blobs: Blobs,
        clock: Clock,
        retentions: Retentions,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._skill_blobs = skill_blobs
        self._clock = clock
        self._retentions = retentions

    async def run(self) -> None:
        """Delete expired rows and orphaned bodies. Raises StorageUnavailable, StorageFull."""
        now = self._clock()
        for retention in self._retentions:
            delete = partial(delete_expired, retention=retention, now=now)
            deleted = await self._database.write(delete)
            if deleted and retention.table is schema.files:
                await asyncio.to_thread(_delete, self._blobs, filter(None, deleted))
        await self._database.write(delete_orphaned_events)
        await self._delete_orphans(self._blobs, files.FOLDER, _known_files)
        await self._delete_orphans(self._blobs, chat_attachments.FOLDER, _known_attachments)
        await self._delete_orphans(self._skill_blobs, skills.FOLDER, _known_skills)

    async def _delete_orphans(
        self, blobs: Blobs, folder: str, known_in: Callable[[Connection], set[str]]
    ) -> None:
        times = await asyncio.to_thread(_modification_times, blobs, folder)
        limit = self._clock() - ORPHAN_AGE_S
        old = [name for name, modified in times.items() if modified < limit]
        if not old:
            return
        known = await self._database.read(known_in)
        orphans = [name for name in old if name not in known]
        if orphans:
            log.info("deleting %d bodies without a row", len(orphans))
            await asyncio.to_thread(_delete, blobs, orphans)


def _modification_times(blobs: Blobs, folder: str) -> dict[str, float]:
    with translated_faults():
        return blobs.modification_times(folder)


def _delete(blobs: Blobs, names: Iterable[str]) -> None:
    with translated_faults():
        for name in names:
            blobs.delete(name)


def _known_files(connection: Connection) -> set[str]:
    return set(connection.execute(select(schema.files.c.body)).scalars())


def _known_attachments(connection: Connection) -> set[str]:
    return set(connection.execute(select(schema.chat_attachments.c.body)).scalars())


def _known_skills(connection: Connection) -> set[str]:
    return set(connection.execute(select(schema.skill_versions.c.body)).scalars())
