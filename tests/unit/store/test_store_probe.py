"""Stores that can be opened immediately are distinguished from all others."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from penstock.config import StoreSettings
from penstock.store.sql.probe import can_open_immediately
from tests.support.stores import opened, sqlite_settings


@pytest.fixture
async def settings(tmp_path: Path) -> StoreSettings:
    settings = sqlite_settings(tmp_path / "home")
    async with opened(settings):
        pass
    return settings


def test_existing_store_can_open_immediately(settings: StoreSettings, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert can_open_immediately(settings)
    assert sorted(tmp_path.rglob("*")) == before


async def test_store_in_use_can_open_immediately(settings: StoreSettings) -> None:
    async with opened(settings):
        assert can_open_immediately(settings)


def test_missing_store_cannot_open_immediately(tmp_path: Path) -> None:
    assert not can_open_immediately(sqlite_settings(tmp_path / "home"))
    assert not (tmp_path / "home").exists()


def lose_bodies(home: Path) -> None:
    shutil.rmtree(home / "blobs")


def turn_bodies_into_a_file(home: Path) -> None:
    lose_bodies(home)
    (home / "blobs").write_text("")


def be_older(home: Path) -> None:
    with closing(sqlite3.connect(home / "penstock.db")) as connection, connection:
        connection.execute("UPDATE penstock_store SET version = 1")


def be_no_database(home: Path) -> None:
    (home / "penstock.db").write_bytes(b"text " * 1000)


@pytest.mark.parametrize("spoil", [lose_bodies, turn_bodies_into_a_file, be_older, be_no_database])
def test_unusable_or_outdated_store_cannot_open_immediately(
    settings: StoreSettings, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(tmp_path / "home")
    assert not can_open_immediately(settings)


def test_remote_store_cannot_open_immediately(settings: StoreSettings) -> None:
    postgres = msgspec.structs.replace(settings, url="postgresql://nobody@localhost:1/x")
    assert not can_open_immediately(postgres)
    assert not can_open_immediately(msgspec.structs.replace(settings, blobs="memory://x"))
