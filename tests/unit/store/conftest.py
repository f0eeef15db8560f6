"""Every test of the store runs over SQLite and over PostgreSQL."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from postgres_cluster import postgres_programs, running_cluster
from stores import MovableClock, opened, sqlite_settings

from penstock.config import StoreSettings
from penstock.store import Store

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[str]:
    """The URL of a running PostgreSQL."""
    programs = postgres_programs()
    if programs is None:
        if os.environ.get("CI") == "true":
            pytest.fail("PostgreSQL is not installed: apt-get install postgresql")
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    with running_cluster(programs) as url:
        yield url


@pytest.fixture
def postgres_url(postgres_cluster: str) -> str:
    """An empty schema of its own for each test."""
    schema = f"test_{next(_numbers)}"
    with psycopg.connect(postgres_cluster, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{postgres_cluster}&options=-csearch_path%3D{schema}"


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSettings:
    """Of an empty store."""
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
