"""Stored responses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.config import StoreSettings
from penstock.store import Store, StoredResponse, response_quota, retention
from penstock.store.records import EventChunk
from tests.support.stores import MovableClock, opened

DAY_S = 24 * 3600


def response(id: str = "resp_1", **changes: Any) -> StoredResponse:
    fields: dict[str, Any] = {
        "id": id,
        "created_at": 1_700_000_000,
        "status": "queued",
        "owner": "me",
        "background": True,
        "body": b'{"id": "resp_1"}',
    }
    return StoredResponse(**{**fields, **changes})


async def test_response_comes_back_as_it_was_stored(store: Store) -> None:
    stored = response(
        status="completed", conversation=b"\x00\xff", previous_id="resp_0", expires_at=2_000_000_000
    )
    await store.responses.create(stored)
    got = await store.responses.get("resp_1")
    assert got == msgspec.structs.replace(stored, heartbeat_at=1_700_000_000)


async def test_response_survives_a_restart(settings: StoreSettings, clock: MovableClock) -> None:
    async with opened(settings, clock) as first:
        await first.responses.create(response())
    async with opened(settings, clock) as second:
        assert await second.responses.get("resp_1") is not None


async def test_unknown_response_is_none(store: Store) -> None:
    assert await store.responses.get("resp_?") is None
    assert await store.responses.request_cancel("resp_?") is None
    assert not await store.responses.delete("resp_?")
    assert not await store.responses.update("resp_?", status="completed", body=b"{}")


async def test_response_is_updated_until_it_has_finished(store: Store) -> None:
    await store.responses.create(response())
    assert await store.responses.update("resp_1", status="in_progress", body=b"1")
    assert await store.responses.update("resp_1", status="completed", body=b"2", conversation=b"c")
    assert not await store.responses.update("resp_1", status="failed", body=b"3")
    got = await store.responses.get("resp_1")
    assert got is not None
    assert (got.status, got.body, got.conversation) == ("completed", b"2", b"c")


async def test_deleted_response_is_not_restored_by_its_run(store: Store) -> None:
    await store.responses.create(response())
    assert await store.responses.delete("resp_1")
    assert not await store.responses.update("resp_1", status="completed", body=b"{}")
    assert await store.responses.get("resp_1") is None


async def test_owner_sees_responses_that_ended_elsewhere(store: Store) -> None:
    for id in ("resp_1", "resp_2", "resp_3", "resp_4"):
        await store.responses.create(response(id))
    await store.responses.create(response("resp_5", owner="other"))
    await store.responses.delete("resp_2")
    await store.responses.update("resp_3", status="failed", body=b"{}")
    await store.responses.request_cancel("resp_4")
    assert await store.responses.active_ids("me") == {"resp_1"}


async def test_cancel_request_reaches_only_the_owner(store: Store) -> None:
    await store.responses.create(response())
    await store.responses.create(response("resp_2", owner="other"))
    asked = await store.responses.request_cancel("resp_1")
    assert asked is not None and asked.cancel_requested
    await store.responses.request_cancel("resp_2")
    assert await store.responses.active_ids("me") == set()


@pytest.mark.parametrize("changes", [{"background": False}, {"status": "completed"}])
async def test_cancel_does_not_change_other_responses(
    store: Store, changes: dict[str, Any]
) -> None:
    await store.responses.create(response(**changes))
    got = await store.responses.request_cancel("resp_1")
    assert got is not None and not got.cancel_requested


@pytest.mark.parametrize("passed_s", [60, -900])
async def test_response_of_a_dead_owner_fails(
    store: Store, clock: MovableClock, passed_s: int
) -> None:
    """Also if the clock was set back."""
    await store.responses.create(response("resp_dead", owner="dead"))
    await store.responses.create(response("resp_done", owner="dead", status="completed"))
    await store.responses.create(response("resp_live", owner="live"))
    await store.responses.create(response("resp_else", owner="silent too"))
    clock.now += passed_s
    await store.responses.heartbeat("live")
    for owner, failed in [("live", 0), ("dead", 1), ("dead", 0)]:
        count = await store.responses.fail_orphans(
            owner, 30, lambda one: b"failed " + one.id.encode()
        )
        assert count == failed
    dead, done, live, other = [
        await store.responses.get(f"resp_{name}") for name in ("dead", "done", "live", "else")
    ]
    assert dead is not None and (dead.status, dead.body) == ("failed", b"failed resp_dead")
    assert done is not None and done.status == "completed"
    assert live is not None and live.status == "queued"
    assert other is not None and other.status == "queued"  # whose owner is not known to be dead


async def test_response_expires_by_the_server_settings(
    settings: StoreSettings, clock: MovableClock
) -> None:
    short = msgspec.structs.replace(settings, response_expiry_s=DAY_S)
    async with opened(short, clock) as store:
        await store.responses.create(response())
        clock.now += DAY_S - 1
        assert await store.responses.get("resp_1") is not None
        clock.now += 1
        assert await store.responses.get("resp_1") is None
        assert not await store.responses.delete("resp_1")


async def test_response_without_expiry_stays(settings: StoreSettings, clock: MovableClock) -> None:
    endless = msgspec.structs.replace(settings, response_expiry_s=0)
    async with opened(endless, clock) as store:
        await store.responses.create(response())
        clock.now += 10_000 * DAY_S
        await store.sweep.run()
        assert await store.responses.get("resp_1") is not None


async def test_events_of_a_deleted_response_are_deleted(store: Store) -> None:
    made = response("resp_gone")
    await store.responses.create(made)
    await store.response_events.append(made.id, EventChunk(0, 2, b"a\n\nb\n\n"))
    assert len(await store.response_events.read(made.id, 0)) == 1
    assert await store.responses.delete(made.id)
    await store.response_events.append(made.id, EventChunk(2, 3, b"c\n\n"))
    assert await store.response_events.read(made.id, 0) == []


async def create_done_and_growing(store: Store) -> None:
    """Create responses of 300 and 100 bytes; the first is deleted first."""
    done = response("done", status="completed", created_at=1_699_999_000, body=b"x" * 300)
    await store.responses.create(done)
    await store.responses.create(response("grows", body=b"x" * 100))


async def kept(store: Store, *ids: str) -> list[str]:
    return [id for id in ids if await store.responses.get(id) is not None]


async def test_oldest_responses_beyond_the_byte_quota_are_deleted(
    settings: StoreSettings, clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    small = msgspec.structs.replace(settings, max_responses_bytes=1000)
    async with opened(small, clock) as store:
        await store.responses.create(response("active_ids", body=b"x" * 300))
        for at, id in enumerate("abc"):
            made = response(id, status="completed", created_at=1_700_000_001 + at, body=b"x" * 200)
            await store.responses.create(msgspec.structs.replace(made, conversation=b"x" * 100))
        assert await kept(store, "active_ids", "a", "b", "c") == ["active_ids", "b", "c"]
        assert "max_responses_bytes" in caplog.text


async def test_growth_of_a_response_counts_for_the_quota(
    settings: StoreSettings, clock: MovableClock
) -> None:
    small = msgspec.structs.replace(settings, max_responses_bytes=1000)
    async with opened(small, clock) as store:
        await create_done_and_growing(store)
        await store.response_events.append("grows", EventChunk(0, 2, b"x" * 300))
        more = {"body": b"x" * 200, "conversation": b"x" * 200}
        assert await store.responses.update("grows", status="in_progress", **more)
        assert await kept(store, "done", "grows") == ["done", "grows"], "1000 bytes"
        more["body"] += b"x"
        assert await store.responses.update("grows", status="completed", **more)
        assert await kept(store, "done", "grows") == ["grows"]


async def test_events_count_for_the_quota(settings: StoreSettings, clock: MovableClock) -> None:
    small = msgspec.structs.replace(settings, max_responses_bytes=1000)
    async with opened(small, clock) as store:
        await create_done_and_growing(store)
        await store.response_events.append("grows", EventChunk(0, 2, b"x" * 600))
        assert await kept(store, "done", "grows") == ["done", "grows"], "1000 bytes"
        await store.response_events.append("grows", EventChunk(2, 3, b"x" * 100))
        assert await kept(store, "done", "grows") == ["grows"]
        assert len(await store.response_events.read("grows", 0)) == 2


async def test_responses_of_other_processes_count_for_the_quota(
    settings: StoreSettings, clock: MovableClock
) -> None:
    small = msgspec.structs.replace(settings, max_responses_bytes=10_000)
    async with opened(small, clock) as store:
        for at, id in enumerate("ab"):
            made = response(id, status="completed", created_at=1_699_999_000 + at)
            await store.responses.create(msgspec.structs.replace(made, body=b"x" * 5_000))
        async with opened(small, clock) as other:
            await other.responses.create(response("c", status="completed"))
        assert await kept(store, "a", "b", "c") == ["b", "c"]


async def test_long_running_response_is_kept_when_it_ends(
    settings: StoreSettings, clock: MovableClock
) -> None:
    small = msgspec.structs.replace(settings, max_responses_bytes=1000)
    async with opened(small, clock) as store:
        for id in "ab":
            await store.responses.create(response(id, status="completed", body=b"x" * 400))
        slow = response("slow", status="completed", created_at=1_699_999_000, body=b"x" * 500)
        await store.responses.create(slow)
        assert await kept(store, "a", "b", "slow") == ["b", "slow"]


async def test_many_responses_are_deleted_in_parts(
    settings: StoreSettings, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (retention, response_quota):
        monkeypatch.setattr(module, "MAX_DELETIONS", 3)
    async with opened(settings, clock) as store:
        for at in range(8):
            made = response(f"r{at}", status="completed", created_at=1_699_999_000 + at)
            await store.responses.create(made)
    small = msgspec.structs.replace(settings, max_responses_bytes=1)
    async with opened(small, clock) as store:
        counts = []
        for at in range(8, 12):
            made = response(f"r{at}", status="completed", created_at=1_699_999_000 + at)
            await store.responses.create(made)
            counts.append(len(await kept(store, *(f"r{one}" for one in range(12)))))
        assert counts == [6, 4, 2, 1]
