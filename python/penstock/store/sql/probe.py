"""Checks quickly, without importing SQLAlchemy, whether it is certain that the store can be opened
later.

Importing SQLAlchemy takes 0.25 s of CPU time, half of the start time with a small model. A local,
writable store with current tables is therefore opened after the server has started to serve; any
other store is opened before the server reports that it is ready.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.base.ids import new_id
from penstock.config import StoreSettings

VERSION: Final = 6
"""The current version of the tables; see `migrations`."""
SQLITE: Final = "sqlite:///"
LOCK_TIMEOUT_S: Final = 0.5


def can_open_immediately(settings: StoreSettings) -> bool:
    """Tell whether the store is a local database with current tables, and its database and folders
    are writable. Returns False on any error: opening the store then reports the cause."""
    assert settings.url and settings.blobs and settings.skills_dir, "StoreSettings.with_defaults"
    try:
        store_id = _read_store_id(settings.url)
        if store_id is None:
            return False
        for folder in (settings.blobs, settings.skills_dir):
            _check_writable(Path(folder) / store_id)
    except (OSError, sqlite3.Error):
        return False
    return True


def _read_store_id(url: str) -> str | None:
    """Return the id of the store, or None if it is not an SQLite database or its tables have
    another version. Raises OSError and sqlite3.Error, also if the database is not writable."""
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


def _check_writable(folder: Path) -> None:
    """Create and delete a temporary file. Raises OSError if the folder is not writable."""
    place = folder / new_id("try-")
    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    place.unlink()
