"""Approvals: requested in one process, decided in any."""

from __future__ import annotations

import asyncio

from penstock.config import StoreSettings
from penstock.store import Store, Verdict
from tests.support.stores import MovableClock, opened


async def test_decision_before_the_run_waits_is_queued(store: Store) -> None:
    id = await store.approvals.create("s")
    assert id.startswith("appr_")
    status = await store.approvals.decide(id, "deny", message="not that", remember=False)
    assert status == "queued"
    assert await store.approvals.wait(id) == Verdict("deny", "not that")


async def test_decision_releases_the_waiting_run_of_any_process(
    store: Store, settings: StoreSettings, clock: MovableClock
) -> None:
    async with opened(settings, clock) as other:
        for decider in (store, other):
            id = await store.approvals.create()
            waiting = asyncio.create_task(store.approvals.wait(id))
            status = "queued"
            while not store.approvals._decided:
                await asyncio.sleep(0)
            status = await decider.approvals.decide(id, "approve", message=None, remember=False)
            assert status == "resolved"
            assert await waiting == Verdict("approve")


async def test_approval_is_decided_once(store: Store) -> None:
    id = await store.approvals.create()
    await store.approvals.decide(id, "approve", message=None, remember=False)
    again = await store.approvals.decide(id, "deny", message=None, remember=False)
    assert again == "not_found"
    assert await store.approvals.wait(id) == Verdict("approve")


async def test_unknown_approval_is_not_found(store: Store) -> None:
    status = await store.approvals.decide("appr_?", "approve", message=None, remember=True)
    assert status == "not_found"


async def test_undecided_approval_is_denied(store: Store, clock: MovableClock) -> None:
    id = await store.approvals.create()
    clock.now += 5 * 60
    late = await store.approvals.decide(id, "approve", message=None, remember=False)
    assert late == "not_found"
    assert (await store.approvals.wait(id)).decision == "deny"


async def test_remembered_approval_applies_only_to_its_session(
    store: Store, clock: MovableClock
) -> None:
    id = await store.approvals.create("s")
    assert not await store.approvals.remembered("s")
    await store.approvals.decide(id, "approve", message=None, remember=True)
    await store.approvals.wait(id)
    clock.now += 10 * 60
    assert await store.approvals.remembered("s")
    assert not await store.approvals.remembered("t")
    clock.now += 20 * 60
    assert not await store.approvals.remembered("s")


async def test_denial_is_not_remembered(store: Store) -> None:
    id = await store.approvals.create("s")
    await store.approvals.decide(id, "deny", message=None, remember=True)
    assert not await store.approvals.remembered("s")
