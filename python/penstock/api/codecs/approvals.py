"""The decision on an approval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from penstock.api.codecs.request_fields.fields import decode_object

MAX_MESSAGE_CHARS: Final = 16 * 1024


@dataclass(frozen=True)
class ApprovalDecision:
    """`message`: for the model, of a denial. `remember`: for the rest of the session."""

    decision: Literal["approve", "deny"]
    message: str | None
    remember: bool


def decode_decision(body: bytes) -> ApprovalDecision:
    """Raises InvalidRequest."""
    fields = decode_object(body)
    fields.required_string("decision")
    decision: Literal["approve", "deny"] = (
        "approve" if fields.choice("decision", ("approve", "deny")) == "approve" else "deny"
    )
    message = fields.string("message")
    if message is not None and len(message) > MAX_MESSAGE_CHARS:
        fields.refuse("message", f"may have at most {MAX_MESSAGE_CHARS} characters")
    return ApprovalDecision(decision, message, bool(fields.boolean("remember_for_session")))
