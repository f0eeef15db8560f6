"""Stored sessions: one run at a time over all processes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from penstock.config import StoreSettings
from penstock.dialog import File, Image, Message, Reasoning, Text, ToolCall, ToolResult
from penstock.store import Store
from penstock.store.errors import StorageFull
from penstock.store.sessions import LEASE_S, SessionBusy, Sessions
from penstock.store.sql.schema import sessions
from tests.support.stores import MovableClock, opened

HELLO = (Message("user", (Text("hello"),)),)
BOTH = (*HELLO, Message("assistant", (Text("hi"),)))


async def test_session_comes_back_with_every_kind_of_part(store: Store) -> None:
    messages = (
        Message("user", (Text("look"), Image(data=b"\x89PNG", mime_type="image/png")), name="ann"),
        Message("assistant", (Reasoning("hm"), ToolCall("call_1", "f", '{"a": 1}'))),
        Message("tool", (ToolResult("call_1", "no", name="f", is_error=True),)),
        Message("user", (File(file_id="file-1", name="x.txt"),)),
    )
    await store.sessions.put("s", messages)
    got = await store.sessions.get("s")
    assert got is not None and got.messages == messages


async def test_unknown_session_is_none(store: Store) -> None:
    assert await store.sessions.get("?") is None
    assert not await store.sessions.delete("?")


async def test_import_replaces(store: Store) -> None:
    await store.sessions.put("s", BOTH)
    await store.sessions.put("s", HELLO)
    got = await store.sessions.get("s")
    assert got is not None and got.messages == HELLO
    assert await store.sessions.delete("s")
    assert await store.sessions.get("s") is None


async def test_run_continues_after_the_last_one(store: Store) -> None:
    async with store.sessions.lease("s") as leased:
        assert leased.messages == ()
        assert await store.sessions.get("s") is None
        assert await leased.save(HELLO)
    async with store.sessions.lease("s") as leased:
        assert leased.messages == HELLO
        assert await leased.save(BOTH)
    got = await store.sessions.get("s")
    assert got is not None and got.messages == BOTH


async def test_second_run_of_a_session_is_rejected_until_the_first_has_ended(
    store: Store, settings: StoreSettings, clock: MovableClock
) -> None:
    async with opened(settings, clock) as other:
        async with store.sessions.lease("s"):
            for busy in (store, other):
                with pytest.raises(SessionBusy):
                    async with busy.sessions.lease("s"):
                        pass
            async with other.sessions.lease("t"):
                pass
        async with other.sessions.lease("s"):
            pass


async def test_run_that_fails_leaves_the_session_as_it_was(store: Store) -> None:
    with pytest.raises(RuntimeError):
        async with store.sessions.lease("new"):
            raise RuntimeError
    assert await store.sessions.get("new") is None
    await store.sessions.put("old", HELLO)
    with pytest.raises(RuntimeError):
        async with store.sessions.lease("old"):
            raise RuntimeError
    got = await store.sessions.get("old")
    assert got is not None and got.messages == HELLO


async def test_run_cancelled_while_it_acquires_its_lease_releases_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, go_on = asyncio.Event(), threading.Event()
    loop, acquire = asyncio.get_running_loop(), Sessions._take_lease

    def slowly(*args: Any) -> Any:
        messages = acquire(*args)
        loop.call_soon_threadsafe(taken.set)
        go_on.wait()
        return messages

    async def run() -> None:
        async with store.sessions.lease("s"):
            pass

    monkeypatch.setattr(Sessions, "_take_lease", slowly)
    running = asyncio.create_task(run())
    await taken.wait()
    running.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    async with store.sessions.lease("s"):
        pass


@pytest.mark.parametrize("passed_s", [LEASE_S, -900])
async def test_session_of_a_dead_process_becomes_free(
    store: Store, clock: MovableClock, passed_s: int
) -> None:
    """When its lease expires; at once if the clock was set back, which would extend the lease."""
    dead = store.sessions.lease("s")
    leased = await dead.__aenter__()
    clock.now += passed_s
    async with store.sessions.lease("s") as second:
        assert not await leased.save(HELLO)
        assert await second.save(BOTH)
    await dead.__aexit__(None, None, None)
    got = await store.sessions.get("s")
    assert got is not None and got.messages == BOTH


async def test_long_run_keeps_its_lease(
    store: Store, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.sessions.RENEWAL_S", 0.001)
    lease = select(sessions.c.lease_until)
    async with store.sessions.lease("s") as leased:
        for _ in range(3):
            clock.now += LEASE_S - 1
            until = 0
            while until < clock.now + LEASE_S:
                until = await store._database.read(lambda c: c.execute(lease).scalar_one())
        with pytest.raises(SessionBusy):
            async with store.sessions.lease("s"):
                pass
        assert await leased.save(HELLO)


@pytest.mark.parametrize("how", ["delete", "put"])
async def test_delete_and_import_override_a_running_run(store: Store, how: str) -> None:
    await store.sessions.put("s", HELLO)
    async with store.sessions.lease("s") as leased:
        if how == "delete":
            await store.sessions.delete("s")
        else:
            await store.sessions.put("s", ())
        assert not await leased.save(BOTH)
    got = await store.sessions.get("s")
    assert (got is None) if how == "delete" else (got is not None and got.messages == ())


async def test_session_expires_unless_it_is_used(store: Store, clock: MovableClock) -> None:
    await store.sessions.put("s", HELLO)
    clock.now += 29 * 60
    async with store.sessions.lease("s") as leased:
        clock.now += 29 * 60
        await store.sweep.run()
        assert await leased.save(BOTH)
    clock.now += 30 * 60
    assert await store.sessions.get("s") is None
    async with store.sessions.lease("s") as leased:
        assert leased.messages == ()
    await store.sweep.run()


async def test_least_recently_used_sessions_beyond_the_byte_quota_are_deleted(
    settings: StoreSettings, clock: MovableClock
) -> None:
    said = (Message("user", (Text("x" * 1000),)),)
    async with opened(msgspec.structs.replace(settings, max_sessions_bytes=2500), clock) as store:
        for name in "abc":
            await store.sessions.put(name, said)
        assert [await store.sessions.get(name) is not None for name in "abc"] == [False, True, True]
        async with store.sessions.lease("b") as leased:
            assert await leased.save((*said, *said))
        assert [await store.sessions.get(name) is not None for name in "bc"] == [True, False]
        await store.sessions.put("large", said * 3)
        assert await store.sessions.get("large") is not None


async def test_least_recently_used_sessions_beyond_the_quota_are_deleted(
    settings: StoreSettings, clock: MovableClock
) -> None:
    async with opened(msgspec.structs.replace(settings, max_sessions=2), clock) as store:
        for name in ("a", "b", "a", "c"):
            async with store.sessions.lease(name) as leased:
                await leased.save(HELLO)
        kept = [name for name in "abc" if await store.sessions.get(name) is not None]
        assert kept == ["a", "c"]


async def test_lease_of_an_unsaved_run_is_released_once_the_disk_has_space(
    settings: StoreSettings, store: Store, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise StorageFull

    await store.sessions.put("old", HELLO)
    with pytest.raises(StorageFull):
        async with store.sessions.lease("old"), store.sessions.lease("new") as leased:
            monkeypatch.setattr(store.sessions._database, "write", full)
            await leased.save(BOTH)
    monkeypatch.undo()
    async with store.sessions.lease("new") as leased:
        assert leased.messages == ()
    async with opened(settings, clock) as other, other.sessions.lease("old") as leased:
        assert leased.messages == HELLO  # in other processes too
