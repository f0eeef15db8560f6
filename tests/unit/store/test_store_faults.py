"""Faults of the store: full disks, locks, processes killed at any moment."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.base.errors import ServiceError
from penstock.config import StoreSettings
from penstock.dialog import Message, Text
from penstock.store import FileSource, NewFile, Store, StoredResponse
from penstock.store.errors import StorageFull, StorageUnavailable
from penstock.store.sql.database import Database
from tests.support.small_filesystems import mounted_disk
from tests.support.stores import MovableClock, bodies, opened, sqlite_settings

UPLOAD = FileSource("user_upload")
TMPFS_BYTES = 2 * 1024 * 1024

# Prints each acknowledged write, until it is killed.
WRITER = """
import asyncio, sys, msgspec
from penstock.config import StoreSettings
from penstock.dialog import Message, Text
from penstock.store import FileSource, NewFile, Store, StoredResponse

async def main(settings, name):
    store = await Store.open(settings)
    for n in range(10_000):
        body = (name + str(n)).encode() * 50
        await store.responses.create(StoredResponse(id=f"{name}-{n}", created_at=2_000_000_000,
            status="completed", owner=name, body=body))
        file = await store.files.create(NewFile(name=f"{n}.txt", data=body,
            source=FileSource("user_upload")))
        await store.sessions.put(name, (Message("user", (Text(str(n)),)),))
        print(n, file.id, flush=True)

asyncio.run(main(msgspec.json.decode(sys.argv[1], type=StoreSettings), sys.argv[2]))
"""


def response(id: str, body: bytes = b"{}") -> StoredResponse:
    return StoredResponse(
        id=id, created_at=2_000_000_000, status="completed", owner="me", body=body
    )


@pytest.mark.slow
async def test_acknowledged_writes_survive_killed_processes(
    settings: StoreSettings,
) -> None:
    async with opened(settings):
        pass
    told = msgspec.json.encode(settings).decode()
    names = ("one", "two")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, told, name], stdout=subprocess.PIPE, text=True
        )
        for name in names
    ]
    said: list[list[str]] = [[], []]
    for writer, lines in zip(writers, said, strict=True):
        assert writer.stdout is not None
        lines.extend(writer.stdout.readline() for _ in range(15))
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
    for writer, lines in zip(writers, said, strict=True):
        assert writer.stdout is not None
        lines.extend(line for line in writer.stdout if line.endswith("\n"))
        writer.wait()
    async with opened(settings) as store:
        for name, lines in zip(names, said, strict=True):
            for line in lines:
                number, file_id = line.split()
                body = f"{name}{number}".encode() * 50
                stored = await store.responses.get(f"{name}-{number}")
                assert stored is not None and stored.body == body
                assert await store.files.read(file_id) == body
            session = await store.sessions.get(name)
            assert session is not None
            (part,) = session.messages[0].parts
            assert isinstance(part, Text) and int(part.text) >= int(lines[-1].split()[0])


async def test_body_without_a_row_after_a_kill_is_swept(
    settings: StoreSettings, clock: MovableClock
) -> None:
    async with opened(settings, clock) as store:
        upload = await store.files.begin()
        await upload.write(b"x" * 10)
        upload._commit()  # killed here, after the body was written and before its row
        (orphan,) = bodies(settings)
        await store.sweep.run()
        assert bodies(settings) == [orphan]
        os.utime(orphan, (clock.now - 2 * 3600,) * 2)
        await store.sweep.run()
        assert bodies(settings) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 2 MiB."""
    with mounted_disk(tmp_path / "small", TMPFS_BYTES) as place:
        yield place


async def test_full_disk_rejects_writes_and_loses_nothing(small_disk: Path) -> None:
    async with opened(sqlite_settings(small_disk)) as store:
        kept = []
        with pytest.raises(ServiceError) as caught:
            for number in range(1000):
                await store.responses.create(response(f"resp_{number}", b"x" * 20_000))
                kept.append(f"resp_{number}")
        assert (caught.value.status, caught.value.code) == (507, "storage_full")
        assert len(kept) > 10
        for id in kept:
            assert await store.responses.get(id) is not None
        with pytest.raises(StorageFull):
            await store.files.create(NewFile(name="x", data=b"x" * TMPFS_BYTES, source=UPLOAD))
        assert bodies(sqlite_settings(small_disk)) == []
        assert await store.files.list() == []
    async with opened(sqlite_settings(small_disk)) as store:
        for id in kept:
            assert await store.responses.get(id) is not None


async def test_upload_that_fills_the_disk_leaves_nothing(small_disk: Path) -> None:
    settings = sqlite_settings(small_disk)
    async with opened(settings) as store:
        upload = await store.files.begin()
        with pytest.raises(StorageFull):
            for _ in range(10):
                await upload.write(b"x" * 1024 * 1024)
        await upload.abort()
        assert bodies(settings) == []
        small = await store.files.create(NewFile(name="x", data=b"x", source=UPLOAD))
        assert await store.files.read(small.id) == b"x"


async def test_locked_database_is_503_and_serves_again_when_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.sql.database.LOCK_TIMEOUT_S", 0.1)
    settings = sqlite_settings(tmp_path)
    async with opened(settings) as store:
        await store.responses.create(response("resp_1"))
        blocker = sqlite3.connect(tmp_path / "penstock.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageUnavailable) as caught:
            await store.responses.create(response("resp_2"))
        assert (caught.value.status, caught.value.code) == (503, "storage_unavailable")
        assert caught.value.retry_after_s
        assert await store.responses.get("resp_1") is not None  # reads do not wait for the lock
        blocker.execute("ROLLBACK")
        blocker.close()
        await store.responses.create(response("resp_2"))
        assert await store.responses.get("resp_2") is not None


async def test_lost_postgres_connection_is_503_and_recovers(
    postgres_url: str, tmp_path: Path
) -> None:
    settings = msgspec.structs.replace(sqlite_settings(tmp_path), url=postgres_url)
    async with opened(settings) as store:
        await store.responses.create(response("resp_1"))
        _drop_connections(postgres_url)
        assert await store.responses.get("resp_1") is not None
        await store.responses.create(response("resp_2"))


def _drop_connections(url: str) -> None:
    database = Database(url)
    with database.engine.connect() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    database.close()


async def test_writes_of_many_tasks_and_two_stores_all_arrive(
    store: Store, settings: StoreSettings, clock: MovableClock
) -> None:
    async with opened(settings, clock) as other:
        stores = (store, other)
        await asyncio.gather(
            *(stores[n % 2].responses.create(response(f"resp_{n}")) for n in range(60)),
            *(stores[n % 2].sessions.put("s", (Message("user", ()),)) for n in range(10)),
        )
        for n in range(60):
            assert await stores[(n + 1) % 2].responses.get(f"resp_{n}") is not None


async def test_failed_write_does_not_affect_others(store: Store) -> None:
    writes = [store.responses.create(response(f"resp_{n // 2}")) for n in range(20)]
    ended = await asyncio.gather(*writes, return_exceptions=True)
    good = [result is None for result in ended]
    assert [good[n] + good[n + 1] for n in range(0, 20, 2)] == [1] * 10
    for n in range(10):
        assert await store.responses.get(f"resp_{n}") is not None


async def test_cancelled_request_leaves_the_store_usable(store: Store) -> None:
    for n in range(20):
        task = asyncio.create_task(store.responses.create(response(f"resp_{n}")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await store.responses.create(response("resp_last"))
    assert await store.responses.get("resp_last") is not None
