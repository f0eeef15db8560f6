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
    """A clock that stands until it is moved."""

    def __init__(self, now: int = 1_700_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


# Makes a schema for what is stored beside a folder; None: it is in SQLite. See `each_database`.
schema_of: Callable[[Path], str] | None = None


def store_settings(folder: Path, **changes: Any) -> StoreSettings:
    """A store in `folder` and, where a test runs over PostgreSQL, in the schema of that folder."""
    settings = sqlite_settings(folder, **changes)
    return (
        settings if schema_of is None else msgspec.structs.replace(settings, url=schema_of(folder))
    )


def sqlite_settings(folder: Path, **changes: Any) -> StoreSettings:
    """A store in `folder` alone."""
    return msgspec.structs.replace(StoreSettings().with_defaults(folder), **changes)


def bodies(settings: StoreSettings) -> list[Path]:
    """The bodies of files and skills that a store keeps on this disk."""
    assert settings.blobs is not None
    return [path for path in Path(settings.blobs).rglob("*") if path.is_file()]


@asynccontextmanager
async def opened(
    settings: StoreSettings, clock: MovableClock | None = None
) -> AsyncIterator[Store]:
    """An open store, until the block ends."""
    store = await (Store.open(settings) if clock is None else Store.open(settings, clock))
    try:
        yield store
    finally:
        await store.close()
