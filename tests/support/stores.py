"""Real stores for tests, in a folder of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from penstock.config import StoreSettings
from penstock.store import Store


class MovableClock:
    """A clock that changes only when it is set."""

    def __init__(self, now: int = 1_700_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


# Returns the PostgreSQL schema for a store's folder; None: stores use SQLite. See `each_database`.
schema_of: Callable[[Path], str] | None = None


def store_settings(folder: Path, **changes: Any) -> StoreSettings:
    """Return settings of a store in `folder` and, if the test runs over PostgreSQL, in the schema
    of that folder."""
    settings = sqlite_settings(folder, **changes)
    return (
        settings if schema_of is None else msgspec.structs.replace(settings, url=schema_of(folder))
    )


def sqlite_settings(folder: Path, **changes: Any) -> StoreSettings:
    """Return settings of a SQLite store in `folder`."""
    return msgspec.structs.replace(StoreSettings().with_defaults(folder), **changes)


def bodies(settings: StoreSettings) -> list[Path]:
    """Return the blob files of files and skills that a store keeps on this disk."""
    assert settings.blobs is not None
    return [path for path in Path(settings.blobs).rglob("*") if path.is_file()]


@asynccontextmanager
async def opened(
    settings: StoreSettings, clock: MovableClock | None = None
) -> AsyncIterator[Store]:
    """Open a store until the block ends."""
    store = await (Store.open(settings) if clock is None else Store.open(settings, clock))
    try:
        yield store
    finally:
        await store.close()
