"""`POST /v1/agent/approvals/{id}`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_serving import Serving, serving

from penstock.store import Verdict


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
