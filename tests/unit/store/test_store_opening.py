"""Opening a store: new, older, newer, by many processes at once, and failures."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection, inspect, text

from penstock.config import SettingsError, StoreSettings
from penstock.store import FileSource, NewFile, Store, StoredResponse
from penstock.store.errors import StorageUnavailable
from penstock.store.records import EventChunk
from penstock.store.sql.database import Database
from penstock.store.sql.migrations import STEPS, migrate
from penstock.store.sweep import Sweep
from tests.support.stores import MovableClock, bodies, opened, sqlite_settings

OPEN = """
import asyncio, sys, msgspec
from penstock.config import StoreSettings
from penstock.store import FileSource, NewFile, Store
settings = msgspec.json.decode(sys.argv[1], type=StoreSettings)
sys.stdin.readline()
asyncio.run(asyncio.wait_for(Store.open(settings), 60))
print("open", flush=True)
"""


def add_column(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE files ADD COLUMN extra TEXT"))


def forget_chats(connection: Connection) -> None:
    """Downgrade to the tables of version 5."""
    for table in ("chat_attachments", "chat_messages", "chats"):
        connection.execute(text(f"DROP TABLE {table}"))


def forget_containers(connection: Connection) -> None:
    """Downgrade to the tables of version 4."""
    forget_chats(connection)
    for column in ("container", "turn_length"):
        connection.execute(text(f"ALTER TABLE responses DROP COLUMN {column}"))


def forget_bodies(connection: Connection) -> None:
    """Downgrade to the tables of version 3."""
    forget_containers(connection)
    connection.execute(text("ALTER TABLE files DROP COLUMN body"))


def forget_sizes(connection: Connection) -> None:
    """Downgrade to the tables of version 2."""
    forget_bodies(connection)
    connection.execute(text("DROP INDEX responses_by_age"))
    for table in ("responses", "skill_versions"):
        connection.execute(text(f"ALTER TABLE {table} DROP COLUMN size_bytes"))


def fail(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE files ADD COLUMN half TEXT"))
    raise RuntimeError("step failed")


def columns(database: Database) -> set[str]:
    return {column["name"] for column in inspect(database.engine).get_columns("files")}


@pytest.fixture
def database(settings: StoreSettings):
    assert settings.url is not None
    database = Database(settings.url)
    yield database
    database.close()


def test_store_keeps_its_id(database: Database) -> None:
    assert migrate(database) == migrate(database)


def test_older_database_runs_each_missing_step_once(database: Database) -> None:
    migrate(database)
    migrate(database, (*STEPS, add_column))
    assert "extra" in columns(database)
    migrate(database, (*STEPS, add_column))


def test_database_of_the_first_version_gets_all_tables(database: Database) -> None:
    migrate(database)
    with database.engine.begin() as connection:
        forget_sizes(connection)
        connection.execute(text("DROP TABLE response_events"))
        connection.execute(text("UPDATE penstock_store SET version = 1"))
    migrate(database)
    assert {"response_events", "chats"} <= set(inspect(database.engine).get_table_names())


async def test_data_of_an_older_database_counts_for_quotas(
    settings: StoreSettings, database: Database, clock: MovableClock
) -> None:
    made = StoredResponse(
        id="", created_at=clock.now, status="completed", owner="me", body=b"x" * 50
    )
    async with opened(settings, clock) as store:
        for id in "ab":
            await store.responses.create(msgspec.structs.replace(made, id=id))
            await store.response_events.append(id, EventChunk(0, 1, b"x" * 40))
    with database.engine.begin() as connection:
        forget_sizes(connection)
        connection.execute(text("UPDATE penstock_store SET version = 2"))
    async with opened(msgspec.structs.replace(settings, max_responses_bytes=189), clock) as store:
        later = msgspec.structs.replace(made, id="c", created_at=clock.now + 1)
        await store.responses.create(later)
        kept = [id for id in "abc" if await store.responses.get(id) is not None]
        assert len(kept) == 2, "of 230 bytes"


async def test_files_of_an_older_database_keep_their_bodies(
    settings: StoreSettings, database: Database, clock: MovableClock
) -> None:
    new = NewFile(name="a.txt", data=b"hello", source=FileSource("user_upload"))
    async with opened(settings, clock) as store:
        kept = await store.files.create(new)
    (body,) = bodies(settings)
    body = body.rename(body.with_name(kept.id))
    os.utime(body, (0, 0))  # older than any running upload
    with database.engine.begin() as connection:
        forget_bodies(connection)
        connection.execute(text("UPDATE penstock_store SET version = 3"))
    async with opened(settings, clock) as store:
        await store.sweep.run()
        assert await store.files.read(kept.id) == new.data


async def test_responses_of_an_older_database_have_no_container(
    settings: StoreSettings, database: Database, clock: MovableClock
) -> None:
    made = StoredResponse(
        id="a", created_at=clock.now, status="completed", owner="me", body=b"{}",
        container="cntr_a", turn_length=1,
    )  # fmt: skip
    async with opened(settings, clock) as store:
        await store.responses.create(made)
    with database.engine.begin() as connection:
        forget_containers(connection)
        connection.execute(text("UPDATE penstock_store SET version = 4"))
    async with opened(settings, clock) as store:
        kept = await store.responses.get("a")
        await store.responses.create(msgspec.structs.replace(made, id="b"))
        new = await store.responses.get("b")
    assert kept is not None and (kept.container, kept.turn_length) == ("", None)
    assert new is not None and (new.container, new.turn_length) == ("cntr_a", 1)


def test_step_that_fails_changes_nothing(database: Database) -> None:
    migrate(database)
    with pytest.raises(RuntimeError):
        migrate(database, (*STEPS, fail))
    assert "half" not in columns(database)
    migrate(database, (*STEPS, add_column))
    assert "extra" in columns(database)


def test_newer_database_is_rejected(database: Database) -> None:
    migrate(database, (*STEPS, add_column))
    with pytest.raises(SettingsError, match=f"version {len(STEPS) + 2}"):
        migrate(database)


@pytest.mark.slow
def test_many_processes_may_open_a_new_store_at_once(settings: StoreSettings) -> None:
    told = msgspec.json.encode(settings).decode()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:  # all have imported their modules, or soon will
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        out, err = process.communicate()
        assert out == "open\n", err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": "mysql://host/db"}, "sqlite:///FILE"),
        ({"url": "not a url"}, "sqlite:///FILE"),
        ({"url": "sqlite://"}, "sqlite:///FILE"),
        ({"url": "sqlite:////proc/nothing/x.db"}, "cannot be opened"),
        ({"url": "postgresql://nobody@localhost:1/x"}, "cannot be opened"),
        ({"blobs": "nosuchscheme://x"}, "fsspec"),
        ({"blobs": "/proc/nothing"}, "cannot be opened"),
    ],
)
async def test_store_that_cannot_be_opened_is_reported_in_one_line(
    settings: StoreSettings, changes: dict[str, str], said: str
) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        await Store.open(msgspec.structs.replace(settings, **changes))
    assert "\n" not in str(caught.value)


async def test_closed_store_leaves_no_thread(settings: StoreSettings) -> None:
    async with opened(settings) as store:
        await store.files.list()
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert len(names) == 2
    assert not [t for t in threading.enumerate() if t.name.startswith("penstock-store")]
    assert len(asyncio.all_tasks()) == 1


def test_server_starts_without_the_store_libraries() -> None:
    code = "import sys, penstock.api.serving.process; print('sqlalchemy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"


async def test_stored_files_are_private(tmp_path: Path) -> None:
    home = tmp_path / "deep" / "er"
    async with opened(sqlite_settings(home)) as store:
        await store.files.create(NewFile(name="x", data=b"x", source=FileSource("user_upload")))
        private = [home, *home.glob("*.db*"), *(home / "blobs").iterdir()]
        assert len(private) == 5
        assert not any(path.stat().st_mode & 0o077 for path in private)


async def test_sweeping_continues_after_a_failure(
    settings: StoreSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    swept = asyncio.Event()
    failures = [RuntimeError("broken"), StorageUnavailable()]

    async def run(_: Sweep) -> None:
        if failures:
            raise failures.pop()
        swept.set()

    monkeypatch.setattr(Sweep, "run", run)
    monkeypatch.setattr("penstock.store.store.SWEEP_INTERVAL_S", 0.001)
    async with opened(settings, MovableClock(0)):
        await asyncio.wait_for(swept.wait(), 5)
    assert caplog.text.count("sweep of the store failed") == 1


def test_missing_psycopg_is_reported_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SettingsError, match=r"pip install 'psycopg\["):
        Database("postgresql://penstock@localhost/penstock")
