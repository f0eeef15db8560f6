"""Files in the store: rows, bodies, expiry, quota, sweep."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.base.errors import NotFound, ServiceError
from penstock.config import StoreSettings
from penstock.store import FileSource, NewFile, Store
from penstock.store.blobs import Blobs
from tests.support.stores import MovableClock, bodies, opened

UPLOAD = FileSource("user_upload")


def new_file(name: str = "notes.txt", data: bytes | None = b"hello", **changes: Any) -> NewFile:
    return NewFile(name=name, data=data, source=UPLOAD, **changes)


async def test_file_comes_back_as_it_was_stored(store: Store, clock: MovableClock) -> None:
    source = FileSource("service_shell", round=2, turn=1)
    stored = await store.files.create(
        NewFile(
            name="naïve résumé.PDF",
            data=b"\x00\xff" * 1000,
            source=source,
            purpose="agent_output",
            container_id="cntr_1",
            session="s",
        )
    )
    assert stored.id.startswith("file-")
    assert (stored.format, stored.mime_type) == ("pdf", "application/pdf")
    assert (stored.size_bytes, stored.created_at) == (2000, clock.now)
    assert stored.expires_at == clock.now + 30 * 60
    assert await store.files.get(stored.id) == stored
    assert await store.files.read(stored.id) == b"\x00\xff" * 1000


@pytest.mark.parametrize("name", ["Makefile", ".env", "a.", "a.b c"])
async def test_name_without_suffix_is_a_binary_file(store: Store, name: str) -> None:
    stored = await store.files.create(new_file(name))
    assert stored.format == "bin"


async def test_unknown_file_is_none(store: Store) -> None:
    assert await store.files.get("file-?") is None
    assert not await store.files.delete("file-?")
    with pytest.raises(NotFound):
        await store.files.read("file-?")


async def test_list_is_newest_first_and_filtered_by_container(store: Store) -> None:
    ids = [
        (await store.files.create(new_file(container_id=container))).id
        for container in ("a", None, "b", "a")
    ]
    assert [file.id for file in await store.files.list()] == ids[::-1]
    assert [file.id for file in await store.files.list("a")] == [ids[3], ids[0]]
    assert await store.files.list("c") == []


async def test_deleted_file_leaves_no_body(store: Store, settings: StoreSettings) -> None:
    stored = await store.files.create(new_file())
    assert len(bodies(settings)) == 1
    assert await store.files.delete(stored.id)
    assert await store.files.get(stored.id) is None
    assert bodies(settings) == []


async def test_id_is_reusable_while_the_old_body_is_being_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = Blobs.delete
    deleting, may_delete = threading.Event(), threading.Event()

    def held(blobs: Blobs, name: str) -> None:
        deleting.set()
        assert may_delete.wait(30)
        delete(blobs, name)

    monkeypatch.setattr(Blobs, "delete", held)
    await store.files.create(new_file(id="file-1", data=b"before"))
    gone = asyncio.create_task(store.files.delete("file-1"))
    assert await asyncio.to_thread(deleting.wait, 30)
    await store.files.create(new_file(id="file-1", data=b"after"))
    may_delete.set()
    assert await gone
    assert await store.files.read("file-1") == b"after"


async def test_file_expires_and_the_sweep_deletes_its_body(
    store: Store, settings: StoreSettings, clock: MovableClock
) -> None:
    stored = await store.files.create(new_file())
    clock.now += 30 * 60
    assert await store.files.get(stored.id) is None
    assert await store.files.list() == []
    assert not await store.files.delete(stored.id)
    await store.sweep.run()
    assert bodies(settings) == []


async def test_expired_file_can_be_created_again_before_a_sweep(
    store: Store, clock: MovableClock
) -> None:
    await store.files.create(new_file(id="file-1", data=b"old"))
    clock.now += 30 * 60
    stored = await store.files.create(new_file(id="file-1", data=b"new"))
    assert await store.files.get("file-1") == stored
    assert await store.files.read("file-1") == b"new"


async def test_concurrent_files_with_one_id_are_one_file(store: Store) -> None:
    sent = [new_file(id="file-1", data=b"x" * size) for size in range(1, 9)]
    first, *others = await asyncio.gather(*map(store.files.create, sent))
    assert all(other == first for other in others)
    assert await store.files.list() == [first]
    assert len(await store.files.read("file-1")) == first.size_bytes


async def test_file_whose_body_cannot_be_written_leaves_its_id_free(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch, pytest.raises(ServiceError):
        patch.setattr(Blobs, "write", full)
        await store.files.create(new_file(id="file-1"))
    assert await store.files.get("file-1") is None
    await store.files.create(new_file(id="file-1"))
    assert await store.files.read("file-1") == b"hello"


async def test_oldest_files_beyond_the_quota_are_deleted(
    settings: StoreSettings, clock: MovableClock
) -> None:
    small = msgspec.structs.replace(settings, max_files=3)
    async with opened(small, clock) as store:
        ids = [(await store.files.create(new_file())).id for _ in range(5)]
        assert [file.id for file in await store.files.list()] == ids[:1:-1]
        assert len(bodies(settings)) == 3


async def test_oldest_files_beyond_the_byte_quota_are_deleted(
    settings: StoreSettings, clock: MovableClock
) -> None:
    small = msgspec.structs.replace(settings, max_files_bytes=10)
    async with opened(small, clock) as store:
        ids = [(await store.files.create(new_file(data=b"x" * 4))).id for _ in range(4)]
        elsewhere = await store.files.create(new_file(data=None, size_bytes=10**10))
        assert [file.id for file in await store.files.list()] == [elsewhere.id, ids[3], ids[2]]
        assert len(bodies(settings)) == 2
        large = await store.files.create(new_file(data=b"x" * 11))
        assert [file.id for file in await store.files.list()] == [large.id]
        assert await store.files.read(large.id) == b"x" * 11


async def test_file_without_body_is_elided(store: Store) -> None:
    stored = await store.files.create(new_file(data=None, size_bytes=10**10))
    assert stored.elided and stored.size_bytes == 10**10
    with pytest.raises(ServiceError) as caught:
        await store.files.read(stored.id)
    assert caught.value.status == 410


async def test_error_placeholder_has_a_code(store: Store) -> None:
    stored = await store.files.create(
        new_file(data=None, code="not_produced", message="plot.png was not produced")
    )
    assert not stored.elided
    with pytest.raises(ServiceError) as caught:
        await store.files.read(stored.id)
    error = caught.value
    assert (error.status, error.code, error.message) == (
        422,
        "not_produced",
        "plot.png was not produced",
    )


async def test_file_with_a_removed_body_is_elided(store: Store, settings: StoreSettings) -> None:
    stored = await store.files.create(new_file())
    bodies(settings)[0].unlink()
    with pytest.raises(ServiceError) as caught:
        await store.files.read(stored.id)
    assert caught.value.status == 410
    assert await store.files.delete(stored.id)


async def test_upload_in_pieces_is_one_file(store: Store, settings: StoreSettings) -> None:
    upload = await store.files.begin()
    for piece in (b"a" * 10, b"", b"b" * 5):
        await upload.write(piece)
    assert await store.files.list() == []
    stored = await upload.finish(new_file(data=None))
    assert (stored.size_bytes, stored.elided) == (15, False)
    assert await store.files.read(stored.id) == b"a" * 10 + b"b" * 5


async def test_large_body_is_read_in_pieces(store: Store) -> None:
    body = bytes(range(256)) * 4096
    stored = await store.files.create(new_file(data=body))
    pieces = [piece async for piece in await store.files.open(stored.id)]
    assert len(pieces) > 2 and b"".join(pieces) == body


async def test_body_can_be_deleted_while_it_is_read(store: Store) -> None:
    body = b"x" * 1_000_000
    stored = await store.files.create(new_file(data=body))
    pieces = await store.files.open(stored.id)
    first = await anext(pieces)
    assert await store.files.delete(stored.id)
    assert first + b"".join([piece async for piece in pieces]) == body


async def test_aborted_upload_leaves_nothing(store: Store, settings: StoreSettings) -> None:
    upload = await store.files.begin()
    await upload.write(b"x" * 10_000)
    await upload.abort()
    assert bodies(settings) == []
    assert await store.files.list() == []


async def test_sweep_deletes_only_old_bodies_without_a_row(
    store: Store, settings: StoreSettings, clock: MovableClock
) -> None:
    await store.files.create(new_file())
    (kept,) = bodies(settings)
    folder = kept.parent
    for name, age_s in (("file-orphan", 7200), ("file-x.ab.part", 7200), ("file-arriving", 60)):
        (folder / name).write_bytes(b"?")
        os.utime(folder / name, (clock.now - age_s,) * 2)
    os.utime(kept, (clock.now - 7200,) * 2)
    await store.sweep.run()
    assert {path.name for path in bodies(settings)} == {kept.name, "file-arriving"}


async def test_stores_that_share_a_folder_do_not_sweep_each_other(
    tmp_path: Path, settings: StoreSettings, clock: MovableClock
) -> None:
    other = msgspec.structs.replace(settings, url=f"sqlite:///{tmp_path}/other.db")
    async with opened(settings, clock) as first, opened(other, clock) as second:
        stored = await first.files.create(new_file())
        os.utime(bodies(settings)[0], (clock.now - 7200,) * 2)
        await second.sweep.run()
        assert await first.files.read(stored.id) == b"hello"


async def test_bodies_can_be_in_any_fsspec_file_system(
    settings: StoreSettings, clock: MovableClock
) -> None:
    remote = msgspec.structs.replace(settings, blobs="memory://penstock")
    async with opened(remote, clock) as store:
        stored = await store.files.create(new_file())
        assert await store.files.read(stored.id) == b"hello"
        await store.files.delete(stored.id)
        await store.sweep.run()
        with pytest.raises(NotFound):
            await store.files.read(stored.id)


@pytest.mark.parametrize("id", ["\x00", "file-\x00", "x" * 5000, "\U0001f600", "'; --"])
async def test_id_of_any_characters_finds_nothing(store: Store, id: str) -> None:
    await store.files.create(new_file())
    assert await store.files.get(id) is None
    assert await store.files.list(id) == []
    assert not await store.files.delete(id)
    assert await store.sessions.get(id) is None
    assert await store.responses.get(id) is None
    assert await store.skills.get(id) is None
    status = await store.approvals.decide(id, "deny", message="\x00", remember=False)
    assert status == "not_found"
