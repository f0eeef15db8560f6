"""Every test of the store runs with SQLite and with PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from penstock.config import StoreSettings
from penstock.store import Store
from tests.support.stores import MovableClock, opened, sqlite_settings


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSettings:
    """Settings of an empty store."""
    settings = sqlite_settings(tmp_path)
    if request.param == "sqlite":
        return settings
    return msgspec.structs.replace(settings, url=request.getfixturevalue("postgres_url"))


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def store(settings: StoreSettings, clock: MovableClock) -> AsyncIterator[Store]:
    """An empty store."""
    async with opened(settings, clock) as store:
        yield store
