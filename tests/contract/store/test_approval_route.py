"""`POST /v1/agent/approvals/{id}`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.store import Verdict
from tests.support.servers.http_server import Serving, serving
from tests.support.stores import MovableClock, opened, store_settings


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving() as running:
        yield running


async def test_decision_is_queued_until_the_run_waits(server: Serving) -> None:
    approvals = server.services.store.approvals
    id = await approvals.create("s")
    body = {"decision": "deny", "message": "no", "remember_for_session": False}
    answer = await server.http.post(f"/v1/agent/approvals/{id}", json=body)
    assert (answer.status_code, answer.json()) == (200, {"status": "queued"})
    assert await approvals.wait(id) == Verdict("deny", "no")


async def test_remembered_approval_is_kept_for_the_session(server: Serving) -> None:
    approvals = server.services.store.approvals
    id = await approvals.create("s")
    body = {"decision": "approve", "remember_for_session": True}
    await server.http.post(f"/v1/agent/approvals/{id}", json=body)
    assert await approvals.remembered("s")


@pytest.mark.parametrize("id", ["appr_none", "%00", "x" * 3000])
async def test_unknown_approval_is_404(server: Serving, id: str) -> None:
    answer = await server.http.post(f"/v1/agent/approvals/{id}", json={"decision": "approve"})
    assert (answer.status_code, answer.json()) == (404, {"status": "not_found"})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "decision"),
        ({"decision": "maybe"}, "decision"),
        ({"decision": True}, "decision"),
        ({"decision": "deny", "message": 3}, "message"),
        ({"decision": "deny", "message": "x" * 17_000}, "message"),
        ({"decision": "deny", "remember_for_session": "yes"}, "remember_for_session"),
    ],
)
async def test_bad_decision_is_refused_and_decides_nothing(
    server: Serving, body: Any, param: str
) -> None:
    approvals = server.services.store.approvals
    id = await approvals.create()
    answer = await server.http.post(f"/v1/agent/approvals/{id}", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    status = await approvals.decide(id, "approve", message=None, remember=False)
    assert status == "queued"


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ({"decision": "approve"}, Verdict("approve")),
        ({"decision": "deny", "message": "not that"}, Verdict("deny", "not that")),
    ],
)
async def test_decision_releases_the_run_that_waits(
    server: Serving, body: Any, verdict: Verdict
) -> None:
    approvals = server.services.store.approvals
    id = await approvals.create("s")
    waiting = asyncio.create_task(approvals.wait(id))
    await server.until(lambda: id in approvals._decided)
    answer = await server.http.post(f"/v1/agent/approvals/{id}", json=body)
    assert (answer.status_code, answer.json()) == (200, {"status": "resolved"})
    assert await waiting == verdict


async def test_decision_may_take_five_minutes_and_no_longer(tmp_path: Path) -> None:
    clock = MovableClock()
    async with opened(store_settings(tmp_path), clock) as store, serving(store=store) as server:
        first, second = await store.approvals.create(), await store.approvals.create()
        statuses = []
        for id, passed_s in ((first, 299), (second, 1)):
            clock.now += passed_s
            url = f"/v1/agent/approvals/{id}"
            answer = await server.http.post(url, json={"decision": "approve"})
            statuses.append((answer.status_code, answer.json()["status"]))
        assert statuses == [(200, "queued"), (404, "not_found")]
        assert (await store.approvals.wait(second)).decision == "deny"
