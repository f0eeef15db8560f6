"""The Store: gives an API process access to the database and the files."""

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
from penstock.store.chat_attachments import ChatAttachments
from penstock.store.chats import Chats
from penstock.store.clock import Clock, system_clock
from penstock.store.files import Files
from penstock.store.response_events import ResponseEvents
from penstock.store.response_quota import ResponseQuota
from penstock.store.responses import Responses
from penstock.store.retention import retentions_of
from penstock.store.sessions import Sessions
from penstock.store.skills import Skills
from penstock.store.sql.database import Database, url_without_password
from penstock.store.sql.migrations import migrate
from penstock.store.sweep import Sweep

log = logging.getLogger(__name__)

SWEEP_INTERVAL_S: Final = 120.0


class Store:
    """Responses, files, sessions, skills, approvals and chats, shared by several processes and
    machines.

    Every method may raise StorageUnavailable (503); methods that write may also raise StorageFull
    (507). A method that raises one of them has changed nothing. When a method returns, its changes
    are on the disk.
    """

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        skill_blobs: Blobs,
        settings: StoreSettings,
        clock: Clock,
    ) -> None:
        """Use `Store.open` instead."""
        self._database = database
        limits = retentions_of(settings)
        quota = ResponseQuota(database, limits.responses)
        self.responses = Responses(database, clock, limits.responses, quota)
        self.response_events = ResponseEvents(database, quota)
        self.files = Files(database, blobs, clock, limits.files)
        self.sessions = Sessions(database, clock, limits.sessions)
        self.skills = Skills(database, skill_blobs, clock, settings.max_skills_bytes)
        self.approvals = Approvals(database, clock, limits.approvals, settings.session_expiry_s)
        self.chats = Chats(database, clock, settings.max_chats_bytes)
        self.chat_attachments = ChatAttachments(database, blobs, clock, settings.max_chats_bytes)
        self.sweep = Sweep(database, blobs, skill_blobs, clock, limits)
        self._sweeper = asyncio.create_task(self._sweep_periodically())

    @classmethod
    async def open(cls, settings: StoreSettings, clock: Clock = system_clock) -> Store:
        """Connect to the database, migrate its tables, and return the store. `settings` must have
        all locations (see `with_defaults`). Raises SettingsError if the database or a folder cannot
        be used."""
        parts = await asyncio.to_thread(_connect, settings)
        return cls(*parts, settings, clock)

    async def close(self) -> None:
        """Finish pending writes and close the database."""
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.to_thread(self._database.close)

    async def _sweep_periodically(self) -> None:
        while True:
            try:
                await self.sweep.run()
                await self.chat_attachments.delete_unused()
            except ServiceError:
                pass  # already logged
            except Exception:
                log.exception("the sweep of the store failed")  # the next sweep may succeed
            await asyncio.sleep(SWEEP_INTERVAL_S)


def _connect(settings: StoreSettings) -> tuple[Database, Blobs, Blobs]:
    assert settings.url and settings.blobs and settings.skills_dir, "StoreSettings.with_defaults"
    with _settings_errors(f"the database {url_without_password(settings.url)}", "--store"):
        database = Database(settings.url)
        try:
            store_id = migrate(database)
        except BaseException:
            database.close()
            raise
    try:
        with _settings_errors(f"the folder {settings.blobs}", "--blobs"):
            blobs = Blobs(settings.blobs, store_id)
            blobs.check_writable()
        with _settings_errors(f"the folder {settings.skills_dir}", "--skills-dir"):
            skill_blobs = Blobs(settings.skills_dir, store_id)
            skill_blobs.check_writable()
    except BaseException:
        database.close()
        raise
    return database, blobs, skill_blobs


@contextmanager
def _settings_errors(place: str, option: str) -> Iterator[None]:
    """Convert errors of the database and the disk in the block into a SettingsError. Its message
    names `place`, the cause and the remedy.

    `place`: the database or folder that the block opens.
    `option`: the command-line option that selects another one.
    """
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        cause = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
        raise SettingsError(
            f"[store] cannot be opened: {place}: {str(cause).splitlines()[0]}; make it writable"
            f" and its disk large enough, or set another place with {option}, or with"
            " PENSTOCK_HOME for all stored data"
        ) from None
