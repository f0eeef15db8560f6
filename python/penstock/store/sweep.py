"""Deletes what has expired, and bodies whose rows a crash kept from being written."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from sqlalchemy import Connection, select

from penstock.store import files
from penstock.store.blobs import Blobs
from penstock.store.clock import Clock
from penstock.store.database import Database
from penstock.store.faults import translated_faults
from penstock.store.retention import Retentions, drop_expired
from penstock.store.schema import files as files_table

log = logging.getLogger(__name__)

# A body without a row is an orphan once it is older than any upload can take.
ORPHAN_AGE_S: Final = 3600


class Sweep:
    """One pass over everything. Any number of processes may sweep at once."""

    def __init__(
        self, database: Database, blobs: Blobs, clock: Clock, retentions: Retentions
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock
        self._retentions = retentions

    async def run(self) -> None:
        """Delete what is due. Raises StorageUnavailable, StorageFull."""
        now = self._clock()
        for retention in self._retentions:
            table = retention.table
            gone = await self._database.write(partial(drop_expired, table=table, now=now))
            if gone and table is files_table:
                await asyncio.to_thread(self._delete, [files.blob_name(id) for id in gone])
        await self._delete_orphans(files.FOLDER)

    async def _delete_orphans(self, folder: str) -> None:
        ages = await asyncio.to_thread(self._ages, folder)
        due = self._clock() - ORPHAN_AGE_S
        old = [name for name, changed in ages.items() if changed < due]
        if not old:
            return
        known = await self._database.read(_known_bodies)
        orphans = [name for name in old if name not in known]
        if orphans:
            log.info("deleting %d bodies without a file", len(orphans))
            await asyncio.to_thread(self._delete, orphans)

    def _ages(self, folder: str) -> dict[str, float]:
        with translated_faults():
            return self._blobs.ages(folder)

    def _delete(self, names: list[str]) -> None:
        with translated_faults():
            for name in names:
                self._blobs.delete(name)


def _known_bodies(connection: Connection) -> set[str]:
    return {files.blob_name(id) for id in connection.execute(select(files_table.c.id)).scalars()}
