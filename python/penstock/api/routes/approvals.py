"""Endpoint of `/v1/agent/approvals/{approval_id}`."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from penstock.api.codecs.approvals import decode_decision
from penstock.api.observability.request_record import record_of_request
from penstock.api.routes.answers import send_value
from penstock.api.routes.request_reader import run_decoder
from penstock.api.services import Services


class DecideApproval:
    """POST: stores a decision on a pending tool call. Returns 404 with status `not_found` if the
    approval is unknown, expired or already decided."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of_request()
        body = await self._services.bodies.read(record, receive)
        decided = await run_decoder(decode_decision, body)
        id: str = scope["path_params"]["approval_id"]
        status = await self._services.store.approvals.decide(
            id, decided.decision, message=decided.message, remember=decided.remember
        )
        await send_value({"status": status}, send, status=404 if status == "not_found" else 200)
