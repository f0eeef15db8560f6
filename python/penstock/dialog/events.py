"""What happens while a request is answered: a closed union of events.

Invariants (property-tested): every part starts and ends once; its deltas concatenate to the text
of its PartEnded; exactly one of RunEnded and RunFailed, and it is last; `fold(events)` is the
non-streamed answer. `choice` tells the answers of one request (`n`) apart, `part` the parts of one
choice.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.dialog.message import Part

PartKind = Literal["text", "reasoning", "tool_call"]
Finish = Literal["stop", "length", "tool_calls", "error"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """Of the model's distribution after bias, penalties and mask, before temperature; of a token of
    an echoed prompt, without these. `logprob` None: the first token of a prompt. `offset`: where in
    the text of the choice the token begins, in characters."""

    token_id: int
    token_bytes: bytes
    logprob: float | None
    top: tuple[tuple[int, bytes, float], ...] = ()
    offset: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Token counts and wall times of a run (seconds)."""

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
    """`model`: the resolved model id; `created`: Unix seconds. `adapter_revision`: exactly what
    is used, None for the base model. `fingerprint`: names version and weights, with which
    answers to the same request may change; "" where nobody knows."""

    model: str
    created: int
    prompt_tokens: int
    adapter_revision: str | None = None
    fingerprint: str = ""


class PartStarted(msgspec.Struct, frozen=True, tag="part_started"):
    choice: int
    part: int
    kind: PartKind
    call_id: str | None = None
    name: str | None = None


class TextDelta(msgspec.Struct, frozen=True, tag="text", gc=False):
    choice: int
    part: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning", gc=False):
    choice: int
    part: int
    text: str


class ArgumentsDelta(msgspec.Struct, frozen=True, tag="arguments", gc=False):
    choice: int
    part: int
    text: str


class PartEnded(msgspec.Struct, frozen=True, tag="part_ended"):
    choice: int
    part: int
    value: Part


class TurnEnded(msgspec.Struct, frozen=True, tag="turn_ended"):
    """One choice of one model call is over. `stop_sequence`: the string that ended it, if any."""

    choice: int
    finish: Finish
    usage: Usage
    stop_sequence: str | None = None


class RunEnded(msgspec.Struct, frozen=True, tag="run_ended"):
    status: Literal["completed", "incomplete", "cancelled"]
    usage: Usage


class RunFailed(msgspec.Struct, frozen=True, tag="run_failed"):
    """All but the tag as of a ServiceError; `message` is for the client."""

    status: int
    kind: str
    code: str
    message: str
    field: str | None = None
    retry_after_s: int | None = None


# ToolCalling, ToolCompleted, ApprovalRequired and FileProduced join with server-side tools.
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
