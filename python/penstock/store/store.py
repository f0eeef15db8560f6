"""The one object through which an API process reaches what outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from penstock.base.errors import ServiceError
from penstock.config import SettingsError, StoreSettings
from penstock.store.blobs import Blobs
from penstock.store.clock import Clock, system_clock
from penstock.store.database import Database
from penstock.store.files import Files
from penstock.store.migrations import migrate
from penstock.store.responses import Responses
from penstock.store.retention import retentions_of
from penstock.store.sweep import Sweep

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 120.0


class Store:
    """Responses and files. Safe for several processes, and machines, at once.

    Every method may raise StorageUnavailable (503) and, if it writes, StorageFull (507): then
    nothing was changed. What a method has returned from is on the disk.
    """

    def __init__(self, database: Database, blobs: Blobs, settings: StoreSettings, clock: Clock):
        """Use `Store.open`."""
        self._database = database
        retentions = retentions_of(settings)
        self.responses = Responses(database, clock, retentions.responses)
        self.files = Files(database, blobs, clock, retentions.files)
        self.sweep = Sweep(database, blobs, clock, retentions)
        self._sweeper = asyncio.create_task(self._sweep_on())

    @classmethod
    async def open(cls, settings: StoreSettings, clock: Clock = system_clock) -> Store:
        """Connect, and bring the tables up to date. Raises SettingsError where database or folder
        cannot be used."""
        database, blobs = await asyncio.to_thread(_connect, settings)
        return cls(database, blobs, settings, clock)

    async def close(self) -> None:
        """Finish what is being written, and let go of the database."""
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.to_thread(self._database.close)

    async def _sweep_on(self) -> None:
        while True:
            with contextlib.suppress(ServiceError):  # it is logged; the next sweep may succeed
                await self.sweep.run()
            await asyncio.sleep(SWEEP_INTERVAL_S)


def _connect(settings: StoreSettings) -> tuple[Database, Blobs]:
    assert settings.url is not None and settings.blobs is not None, "StoreSettings.located"
    try:
        database = Database(settings.url)
        try:
            return database, Blobs(settings.blobs, migrate(database))
        except BaseException:
            database.close()
            raise
    except (SQLAlchemyError, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise SettingsError(f"[store] cannot be opened: {str(cause).splitlines()[0]}") from None
