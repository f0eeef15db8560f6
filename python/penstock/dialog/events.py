"""The events of an answer.

Invariants (property-tested): every part starts and ends once; the deltas of a part concatenate to
the text in its PartEnded; the last event, and no other, is RunEnded or RunFailed; `fold(events)` is
the answer in one piece, for clients that do not stream.

In all events, `choice` is the index of the choice in the request and `part` the index of the part
in the choice.

A call of a server tool has a part index too, but no PartStarted and PartEnded: ToolCalling is its
first event and ToolCompleted its last. The parts of several rounds are numbered without gaps. Calls
of one round may run side by side; their ToolCalling events come in the order of their indexes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.base.errors import ServiceError
from penstock.dialog.message import Part, ToolCall
from penstock.dialog.server_tools import ProducedFile, ServerTool, ToolActivity, ToolRun

PartKind = Literal["text", "reasoning", "tool_call"]
# "rounds": the limit of tool rounds ended the choice.
Finish = Literal["stop", "length", "tool_calls", "rounds", "error"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The log-probability of a token and of its alternatives.

    - `logprob`: computed after bias, penalties and mask and before temperature; for a token of an
      echoed prompt, without bias, penalties and mask. None for the first token of a prompt.
    - `top`: (token id, bytes, logprob) of the likeliest tokens at this position.
    - `offset`: start of the token in the text of the choice, in characters.
    """

    token_id: int
    token_bytes: bytes
    logprob: float | None
    top: tuple[tuple[int, bytes, float], ...] = ()
    offset: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Token counts and wall-clock times of a run or of one choice.

    - `cached_tokens`: prompt tokens found in the prefix cache.
    - `reasoning_tokens`: completion tokens that are reasoning.
    - `prompt_time_s`: seconds from submission to the first token.
    - `completion_time_s`: seconds from the first token to the last.
    """

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
    """The start of a run.

    - `model`: the resolved model id.
    - `created`: Unix time in seconds.
    - `prompt_tokens`: tokens of all prompts.
    - `adapter_revision`: the revision that is used, None for the base model.
    - `fingerprint`: identifies the software version and the weights: if it changes, answers to the
      same request may change. "" if unknown.
    - `session`: id of the session that keeps the state of server tools, None without one. The agent
      loop sets it, also if the client sent none.
    """

    model: str
    created: int
    prompt_tokens: int
    adapter_revision: str | None = None
    fingerprint: str = ""
    session: str | None = None


class PartStarted(msgspec.Struct, frozen=True, tag="part_started"):
    """The start of a part. `call_id` and `name`: id and function of a tool call, else None."""

    choice: int
    part: int
    kind: PartKind
    call_id: str | None = None
    name: str | None = None


class TextDelta(msgspec.Struct, frozen=True, tag="text", gc=False):
    """The next piece of a text part. `logprobs`: logprobs of the tokens that start in `text`, if
    requested."""

    choice: int
    part: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning", gc=False):
    """The next piece of a reasoning part."""

    choice: int
    part: int
    text: str


class ArgumentsDelta(msgspec.Struct, frozen=True, tag="arguments", gc=False):
    """The next piece of a tool call's arguments, as JSON text."""

    choice: int
    part: int
    text: str


class PartEnded(msgspec.Struct, frozen=True, tag="part_ended"):
    """The end of a part. `value`: the complete part."""

    choice: int
    part: int
    value: Part


class ToolCalling(msgspec.Struct, frozen=True, tag="tool_calling"):
    """The start of a call of a server tool. `activity`: its input."""

    choice: int
    part: int
    round: int
    call: ToolCall
    tool: ServerTool
    activity: ToolActivity


class ToolCompleted(msgspec.Struct, frozen=True, tag="tool_completed"):
    """The end of a call of a server tool. The files of the call follow as FileProduced."""

    choice: int
    part: int
    run: ToolRun


class ApprovalRequired(msgspec.Struct, frozen=True, tag="approval_required"):
    """A call of a server tool waits for a decision on the approval `approval_id`. It follows the
    ToolCalling event of the call.

    `arguments`: the JSON text that runs if the call is approved.
    """

    choice: int
    part: int
    approval_id: str
    session: str
    round: int
    tool: ServerTool
    arguments: str


class FileProduced(msgspec.Struct, frozen=True, tag="file_produced"):
    """A file that a server tool made. Placeholders of requested files that no tool made come after
    the last part, before TurnEnded."""

    choice: int
    file: ProducedFile


class TurnEnded(msgspec.Struct, frozen=True, tag="turn_ended"):
    """The end of one choice. `stop_sequence`: the stop string that ended the choice, or None."""

    choice: int
    finish: Finish
    usage: Usage
    stop_sequence: str | None = None


class RunEnded(msgspec.Struct, frozen=True, tag="run_ended"):
    """The end of a run that did not fail."""

    status: Literal["completed", "incomplete", "cancelled"]
    usage: Usage


class RunFailed(msgspec.Struct, frozen=True, tag="run_failed"):
    """The end of a run that failed, with the fields of the ServiceError. `status`: HTTP status.
    `message`: shown to the client."""

    status: int
    kind: str
    code: str
    message: str
    field: str | None = None
    retry_after_s: int | None = None

    @classmethod
    def of(cls, error: ServiceError) -> RunFailed:
        """Return the event for a run that ended with this error."""
        return cls(
            status=error.status,
            kind=error.kind,
            code=error.code,
            message=error.message,
            field=error.field,
            retry_after_s=error.retry_after_s,
        )


Event = (
    RunStarted
    | PartStarted
    | TextDelta
    | ReasoningDelta
    | ArgumentsDelta
    | PartEnded
    | ToolCalling
    | ToolCompleted
    | ApprovalRequired
    | FileProduced
    | TurnEnded
    | RunEnded
    | RunFailed
)
