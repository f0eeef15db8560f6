"""The events of an answer: a closed union.

Invariants (property-tested): every part starts and ends once; its deltas concatenate to the text
of its PartEnded; there is exactly one RunEnded or RunFailed, and it is last; `fold(events)` is the
answer that is not streamed. `choice` numbers the answers to one request (`n`), `part` the parts of
one choice.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.base.errors import ServiceError
from penstock.dialog.message import Part

PartKind = Literal["text", "reasoning", "tool_call"]
Finish = Literal["stop", "length", "tool_calls", "error"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The log-probability of a token, after bias, penalties and mask and before temperature; for a
    token of an echoed prompt, without these. `logprob` None: the first token of a prompt. `offset`:
    where the token begins in the text of the choice, in characters."""

    token_id: int
    token_bytes: bytes
    logprob: float | None
    top: tuple[tuple[int, bytes, float], ...] = ()
    offset: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Token counts of a run, and its wall times in seconds."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    prompt_time_s: float = 0.0
    completion_time_s: float = 0.0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class RunStarted(msgspec.Struct, frozen=True, tag="run_started"):
    """The start of a run. `model`: the resolved model id; `created`: Unix seconds.
    `adapter_revision`: the revision that is used, None for the base model. `fingerprint`: names the
    version and the weights, with which answers to the same request may change; "" if unknown."""

    model: str
    created: int
    prompt_tokens: int
    adapter_revision: str | None = None
    fingerprint: str = ""


class PartStarted(msgspec.Struct, frozen=True, tag="part_started"):
    """The start of a part; `call_id` and `name` are those of a tool call."""

    choice: int
    part: int
    kind: PartKind
    call_id: str | None = None
    name: str | None = None


class TextDelta(msgspec.Struct, frozen=True, tag="text", gc=False):
    """More of a text part."""

    choice: int
    part: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning", gc=False):
    """More of a reasoning part."""

    choice: int
    part: int
    text: str


class ArgumentsDelta(msgspec.Struct, frozen=True, tag="arguments", gc=False):
    """More of the arguments of a tool call."""

    choice: int
    part: int
    text: str


class PartEnded(msgspec.Struct, frozen=True, tag="part_ended"):
    """The end of a part, with all of its content."""

    choice: int
    part: int
    value: Part


class TurnEnded(msgspec.Struct, frozen=True, tag="turn_ended"):
    """The end of one choice. `stop_sequence`: the stop string that ended it, if any."""

    choice: int
    finish: Finish
    usage: Usage
    stop_sequence: str | None = None


class RunEnded(msgspec.Struct, frozen=True, tag="run_ended"):
    """The end of a run that did not fail."""

    status: Literal["completed", "incomplete", "cancelled"]
    usage: Usage


class RunFailed(msgspec.Struct, frozen=True, tag="run_failed"):
    """The fields of the ServiceError that ended a run; `message` is for the client."""

    status: int
    kind: str
    code: str
    message: str
    field: str | None = None
    retry_after_s: int | None = None

    @classmethod
    def of(cls, error: ServiceError) -> RunFailed:
        """Return the event that ends a run with this error."""
        return cls(
            status=error.status,
            kind=error.kind,
            code=error.code,
            message=error.message,
            field=error.field,
            retry_after_s=error.retry_after_s,
        )


# ToolCalling, ToolCompleted, ApprovalRequired and FileProduced will join with server-side tools.
Event = (
    RunStarted
    | PartStarted
    | TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | PartEnded
    | TurnEnded
    | RunEnded
    | RunFailed
)
