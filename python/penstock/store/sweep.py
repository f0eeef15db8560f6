"""Deletes what has expired, and bodies whose rows a crash kept from being written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from sqlalchemy import Connection, select

from penstock.store import files, skills
from penstock.store.blobs import Blobs
from penstock.store.clock import Clock
from penstock.store.response_quota import drop_lost_events
from penstock.store.retention import Retentions, drop_expired
from penstock.store.sql import schema
from penstock.store.sql.database import Database
from penstock.store.sql.faults import translated_faults

log = logging.getLogger(__name__)

# A body without a row is an orphan once it is older than any upload can take.
ORPHAN_AGE_S: Final = 3600


class Sweep:
    """One pass over everything. Any number of processes may sweep at once."""

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
        """Delete what is due. Raises StorageUnavailable, StorageFull."""
        now = self._clock()
        for retention in self._retentions:
            drop = partial(drop_expired, retention=retention, now=now)
            gone = await self._database.write(drop)
            if gone and retention.table is schema.files:
                await asyncio.to_thread(_delete, self._blobs, filter(None, gone))
        await self._database.write(drop_lost_events)
        await self._delete_orphans(self._blobs, files.FOLDER, _known_files)
        await self._delete_orphans(self._skill_blobs, skills.FOLDER, _known_skills)

    async def _delete_orphans(
        self, blobs: Blobs, folder: str, known_in: Callable[[Connection], set[str]]
    ) -> None:
        ages = await asyncio.to_thread(_ages, blobs, folder)
        due = self._clock() - ORPHAN_AGE_S
        old = [name for name, changed in ages.items() if changed < due]
        if not old:
            return
        known = await self._database.read(known_in)
        orphans = [name for name in old if name not in known]
        if orphans:
            log.info("deleting %d bodies without a row", len(orphans))
            await asyncio.to_thread(_delete, blobs, orphans)


def _ages(blobs: Blobs, folder: str) -> dict[str, float]:
    with translated_faults():
        return blobs.ages(folder)


def _delete(blobs: Blobs, names: Iterable[str]) -> None:
    with translated_faults():
        for name in names:
            blobs.delete(name)


def _known_files(connection: Connection) -> set[str]:
    return set(connection.execute(select(schema.files.c.body)).scalars())


def _known_skills(connection: Connection) -> set[str]:
    return set(connection.execute(select(schema.skill_versions.c.body)).scalars())
