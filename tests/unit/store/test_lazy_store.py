"""The store of an API process, which opens at its first use."""

from pathlib import Path

import pytest

from penstock.base.errors import NotFound
from penstock.config import SettingsError, StoreSettings
from penstock.dialog import Message, Text
from penstock.store import FileSource, NewFile
from penstock.store.errors import StorageUnavailable
from penstock.store.lazy_store import LazyStore
from tests.support.stores import sqlite_settings

SAID = (Message("user", (Text("hello"),)),)


@pytest.fixture
async def late(tmp_path: Path):
    store = LazyStore(sqlite_settings(tmp_path))
    yield store
    await store.close()


def settings_of_no_database(folder: Path) -> StoreSettings:
    (folder / "penstock.db").mkdir()
    return sqlite_settings(folder)


async def test_first_use_opens_it(late: LazyStore, tmp_path: Path):
    assert not (tmp_path / "penstock.db").exists()
    new = NewFile(name="a.txt", data=b"text", source=FileSource("upload"), purpose="user_data")
    file = await late.files.create(new)
    assert (tmp_path / "penstock.db").exists()
    assert await late.files.read(file.id) == b"text"
    assert await late.files.list() == [file]


async def test_every_part_forwards_to_the_store(late: LazyStore):
    async with late.sessions.lease("trip") as leased:
        assert await leased.save(SAID)
    session = await late.sessions.get("trip")
    assert session is not None and session.messages == SAID
    assert await late.responses.get("resp_none") is None
    assert await late.skills.list() == []
    assert not await late.approvals.remembered("trip")
    with pytest.raises(NotFound):
        await late.files.read("file_none")


async def test_closing_an_unused_store_creates_nothing(tmp_path: Path):
    store = LazyStore(sqlite_settings(tmp_path))
    await store.close()
    assert not (tmp_path / "penstock.db").exists()


async def test_store_that_cannot_be_opened_is_a_settings_error_and_503_for_clients(
    tmp_path: Path,
):
    store = LazyStore(settings_of_no_database(tmp_path))
    with pytest.raises(SettingsError, match=r"\[store\] cannot be opened"):
        await store.open()
    with pytest.raises(StorageUnavailable):
        await store.responses.get("resp_none")
    with pytest.raises(StorageUnavailable):
        async with store.sessions.lease("trip"):
            pass
    await store.close()


async def test_failed_opening_is_retried(tmp_path: Path):
    store = LazyStore(settings_of_no_database(tmp_path))
    with pytest.raises(SettingsError):
        await store.open()
    (tmp_path / "penstock.db").rmdir()
    assert await store.responses.get("resp_none") is None
    await store.close()


async def test_lazy_store_has_every_part(late: LazyStore):
    await late.open()
    opened = await late._opened()
    parts = {name for name in vars(opened) if not name.startswith("_")} - {"sweep"}
    assert parts == {name for name in vars(late) if not name.startswith("_")}
