"""Fixtures for tests that run over SQLite and over PostgreSQL. `conftest.py` makes them available.

Their dependencies are imported inside the fixtures: machines that run the GPU tests have torch, but
no database.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[str]:
    """Yield the URL of a running PostgreSQL."""
    from tests.support.postgres_cluster import postgres_programs, running_cluster

    programs = postgres_programs()
    if programs is None:
        if os.environ.get("CI") == "true":
            pytest.fail("PostgreSQL is not installed: apt-get install postgresql")
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    with running_cluster(programs) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_schemas(postgres_cluster: str) -> Callable[[], str]:
    """Return a function that makes an empty schema and returns its URL."""
    import psycopg

    numbers = itertools.count()

    def make() -> str:
        schema = f"test_{next(numbers)}"
        with psycopg.connect(postgres_cluster, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        return f"{postgres_cluster}&options=-csearch_path%3D{schema}"

    return make


@pytest.fixture
def postgres_url(postgres_schemas: Callable[[], str]) -> str:
    """Return the URL of an empty schema of this test's own."""
    return postgres_schemas()


@pytest.fixture(params=["sqlite", "postgres"])
def each_database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test once over each database: its stores are in `stores.store_settings`."""
    if request.param == "sqlite":
        return
    from tests.support import stores

    make = request.getfixturevalue("postgres_schemas")
    urls: dict[Path, str] = {}

    def schema_of(folder: Path) -> str:
        if folder not in urls:
            urls[folder] = make()
        return urls[folder]

    monkeypatch.setattr(stores, "schema_of", schema_of)
