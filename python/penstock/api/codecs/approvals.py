"""Decodes the decision on a tool call that waits for approval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.schema.files_and_approvals import ApprovalDecisionRequest


@dataclass(frozen=True)
class ApprovalDecision:
    """A decision on a tool call. `message`: text for the model if the call is denied. `remember`:
    apply the decision to later calls of the session."""

    decision: Literal["approve", "deny"]
    message: str | None
    remember: bool


def decode_decision(body: bytes) -> ApprovalDecision:
    """Decode the body of an approval decision. Raises InvalidRequest."""
    asked = decode_body(body, ApprovalDecisionRequest)
    return ApprovalDecision(asked.decision, asked.message, asked.remember_for_session or False)
