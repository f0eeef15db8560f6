"""Whether a store needs no work to open, found out without its libraries.

SQLAlchemy takes a quarter of a second of CPU to import, which is half of the start of a small
model. A store that an earlier start has made, and that can be written to, opens while the server
already answers; any other is opened before the server says that it is ready.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.base.ids import new_id
from penstock.config import StoreSettings

VERSION: Final = 4
"""The version of the tables that this Penstock uses; see `migrations`."""
SQLITE: Final = "sqlite:///"
LOCK_TIMEOUT_S: Final = 0.5


def can_open_immediately(settings: StoreSettings) -> bool:
    """Whether the store is a local one with current tables, whose database and folders can be
    written to. False also where that cannot be told: opening the store gives the reason."""
    assert settings.url and settings.blobs and settings.skills_dir, "StoreSettings.with_defaults"
    try:
        store_id = _id_of(settings.url)
        if store_id is None:
            return False
        for folder in (settings.blobs, settings.skills_dir):
            _write_in(Path(folder) / store_id)
    except (OSError, sqlite3.Error):
        return False
    return True


def _id_of(url: str) -> str | None:
    """The store's id; None for a database of another kind, or of another version. Raises OSError
    and sqlite3.Error, also for a database that cannot be written to."""
    if not url.startswith(SQLITE):
        return None
    address = Path(url.removeprefix(SQLITE)).absolute().as_uri() + "?mode=rw"
    with closing(sqlite3.connect(address, timeout=LOCK_TIMEOUT_S, uri=True)) as connection:
        connection.isolation_level = None
        connection.execute("BEGIN IMMEDIATE")
        store_id, version = connection.execute(
            "SELECT store_id, version FROM penstock_store"
        ).fetchone()
        connection.execute("ROLLBACK")
    return str(store_id) if version == VERSION else None


def _write_in(folder: Path) -> None:
    """Raises OSError where the folder takes no file."""
    place = folder / new_id("try-")
    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    place.unlink()
