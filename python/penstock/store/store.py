"""The one object through which an API process reaches what outlives it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from penstock.base.errors import ServiceError
from penstock.config import SettingsError, StoreSettings
from penstock.store.approvals import Approvals
from penstock.store.blobs import Blobs
from penstock.store.clock import Clock, system_clock
from penstock.store.files import Files
from penstock.store.response_events import ResponseEvents
from penstock.store.response_quota import ResponseQuota
from penstock.store.responses import Responses
from penstock.store.retention import retentions_of
from penstock.store.sessions import Sessions
from penstock.store.skills import Skills
from penstock.store.sql.database import Database, shown_url
from penstock.store.sql.migrations import migrate
from penstock.store.sweep import Sweep

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 120.0


class Store:
    """Responses, files, sessions, skills, approvals; for several processes and machines at once.

    Every method may raise StorageUnavailable (503) and, if it writes, StorageFull (507): then
    nothing was changed. What a method has returned from is on the disk.
    """

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        skill_blobs: Blobs,
        settings: StoreSettings,
        clock: Clock,
    ) -> None:
        """Use `Store.open`."""
        self._database = database
        kept = retentions_of(settings)
        quota = ResponseQuota(database, kept.responses)
        self.responses = Responses(database, clock, kept.responses, quota)
        self.response_events = ResponseEvents(database, quota)
        self.files = Files(database, blobs, clock, kept.files)
        self.sessions = Sessions(database, clock, kept.sessions)
        self.skills = Skills(database, skill_blobs, clock, settings.max_skills_bytes)
        self.approvals = Approvals(database, clock, kept.approvals, settings.session_expiry_s)
        self.sweep = Sweep(database, blobs, skill_blobs, clock, kept)
        self._sweeper = asyncio.create_task(self._sweep_on())

    @classmethod
    async def open(cls, settings: StoreSettings, clock: Clock = system_clock) -> Store:
        """Connect, and bring the tables up to date. `settings` names all places. Raises
        SettingsError where database or folder cannot be used."""
        parts = await asyncio.to_thread(_connect, settings)
        return cls(*parts, settings, clock)

    async def close(self) -> None:
        """Finish what is being written, and let go of the database."""
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.to_thread(self._database.close)

    async def _sweep_on(self) -> None:
        while True:
            try:
                await self.sweep.run()
            except ServiceError:
                pass  # it is logged
            except Exception:
                log.exception("the store was not swept")  # the next sweep may succeed
            await asyncio.sleep(SWEEP_INTERVAL_S)


def _connect(settings: StoreSettings) -> tuple[Database, Blobs, Blobs]:
    assert settings.url and settings.blobs and settings.skills_dir, "StoreSettings.with_defaults"
    with _told(f"the database {shown_url(settings.url)}", "--store"):
        database = Database(settings.url)
        try:
            store_id = migrate(database)
        except BaseException:
            database.close()
            raise
    try:
        with _told(f"the folder {settings.blobs}", "--blobs"):
            blobs = Blobs(settings.blobs, store_id)
            blobs.try_to_write()
        with _told(f"the folder {settings.skills_dir}", "--skills-dir"):
            skill_blobs = Blobs(settings.skills_dir, store_id)
            skill_blobs.try_to_write()
    except BaseException:
        database.close()
        raise
    return database, blobs, skill_blobs


@contextmanager
def _told(place: str, option: str) -> Iterator[None]:
    """Raise a SettingsError for faults of database and disk inside: the place, what is wrong, and
    what an operator can do. `option`: names another place."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        cause = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
        raise SettingsError(
            f"[store] cannot be opened: {place}: {str(cause).splitlines()[0]}; make it writable"
            f" and its disk large enough, or name another place with {option}, or with"
            " PENSTOCK_HOME for all that is kept"
        ) from None
