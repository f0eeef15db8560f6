"""The decision on an approval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.schema.files_and_approvals import ApprovalDecisionRequest


@dataclass(frozen=True)
class ApprovalDecision:
    """`message`: for the model, about a denial. `remember`: for the rest of the session."""

    decision: Literal["approve", "deny"]
    message: str | None
    remember: bool


def decode_decision(body: bytes) -> ApprovalDecision:
    """Decode the decision on an approval. Raises InvalidRequest."""
    asked = decode_body(body, ApprovalDecisionRequest)
    return ApprovalDecision(asked.decision, asked.message, asked.remember_for_session or False)
