"""A store that opens with its first use, as an API process has it."""

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


async def test_every_part_answers_as_the_store_does(late: LazyStore):
    async with late.sessions.held("trip") as held:
        assert await held.keep(SAID)
    session = await late.sessions.get("trip")
    assert session is not None and session.messages == SAID
    assert await late.responses.get("resp_none") is None
    assert await late.skills.list() == []
    assert not await late.approvals.remembered("trip")
    with pytest.raises(NotFound):
        await late.files.read("file_none")


async def test_closing_what_was_never_used_makes_nothing(tmp_path: Path):
    store = LazyStore(sqlite_settings(tmp_path))
    await store.close()
    assert not (tmp_path / "penstock.db").exists()


async def test_what_cannot_be_opened_is_a_wrong_setting_to_the_operator_and_503_to_clients(
    tmp_path: Path,
):
    store = LazyStore(settings_of_no_database(tmp_path))
    with pytest.raises(SettingsError, match=r"\[store\] cannot be opened"):
        await store.open()
    with pytest.raises(StorageUnavailable):
        await store.responses.get("resp_none")
    with pytest.raises(StorageUnavailable):
        async with store.sessions.held("trip"):
            pass
    await store.close()


async def test_a_store_that_could_not_be_opened_is_tried_again(tmp_path: Path):
    store = LazyStore(settings_of_no_database(tmp_path))
    with pytest.raises(SettingsError):
        await store.open()
    (tmp_path / "penstock.db").rmdir()
    assert await store.responses.get("resp_none") is None
    await store.close()


async def test_it_has_every_part_that_routes_use(late: LazyStore):
    await late.open()
    opened = await late._opened()
    parts = {name for name in vars(opened) if not name.startswith("_")} - {"sweep"}
    assert parts == {name for name in vars(late) if not name.startswith("_")}
