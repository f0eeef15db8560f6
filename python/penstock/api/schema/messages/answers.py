"""Anthropic's Messages: the answer, the events of a stream, errors."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from penstock.api.schema.agent import (
    AgenticToolApprovalRequired,
    AgenticToolCallProgress,
    FileObject,
)

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "overloaded_error",
    "timeout_error",
    "api_error",
]


class AnsweredText(Struct, tag="text", tag_field="type"):
    """Text of the answer."""

    text: str


class AnsweredThinking(Struct, tag="thinking", tag_field="type"):
    """Reasoning of the model. `signature` is a digest, so that clients keep the block."""

    thinking: str
    signature: str


class AnsweredToolUse(Struct, tag="tool_use", tag_field="type"):
    """A call of the client's tool; in a stream, `input` is empty at first."""

    id: str
    name: str
    input: dict[str, Any]


AnsweredBlock = AnsweredText | AnsweredThinking | AnsweredToolUse


class MessageTokensDetails(Struct):
    """`thinking_tokens`: output tokens of reasoning."""

    thinking_tokens: int


class MessageUsage(Struct):
    """`input_tokens` are those not read from the cache: all three together are the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessageTokensDetails


class MessageResponse(Struct, kw_only=True):
    """The finished answer. In `message_start` it has no content yet."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[AnsweredBlock]
    model: str
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    adapter_generation: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    files: list[FileObject] | UnsetType = UNSET


class CountTokensResponse(Struct):
    """The length of the prompt."""

    input_tokens: int


class MessageStart(Struct, tag="message_start", tag_field="type"):
    """The first event."""

    message: MessageResponse


class ContentBlockStart(Struct, tag="content_block_start", tag_field="type"):
    """A block begins; it is empty."""

    index: int
    content_block: AnsweredBlock


class TextBlockDelta(Struct, tag="text_delta", tag_field="type"):
    """A piece of text."""

    text: str


class ThinkingBlockDelta(Struct, tag="thinking_delta", tag_field="type"):
    """A piece of reasoning."""

    thinking: str


class SignatureDelta(Struct, tag="signature_delta", tag_field="type"):
    """The signature of a thinking block, at its end."""

    signature: str


class InputJsonDelta(Struct, tag="input_json_delta", tag_field="type"):
    """A piece of the JSON text of a call's input."""

    partial_json: str


class ContentBlockDelta(Struct, tag="content_block_delta", tag_field="type"):
    """A piece of the open block."""

    index: int
    delta: TextBlockDelta | ThinkingBlockDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(Struct, tag="content_block_stop", tag_field="type"):
    """A block ends."""

    index: int


class MessageEnd(Struct):
    """Why the answer ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(Struct, tag="message_delta", tag_field="type"):
    """The end of the answer, with the usage of all of it."""

    delta: MessageEnd
    usage: MessageUsage
    session_id: str | UnsetType = UNSET


class MessageStop(Struct, tag="message_stop", tag_field="type"):
    """The last event."""


class Ping(Struct, tag="ping", tag_field="type"):
    """Keeps the connection open while no token is computed."""


class MessagesErrorBody(Struct):
    """The error. `message` says what would be right."""

    type: ErrorType
    message: str


class MessagesError(Struct):
    """Every error of these routes."""

    type: Literal["error"]
    error: MessagesErrorBody
    request_id: str


class MessageErrorEvent(Struct, tag="error", tag_field="type"):
    """The last event of an answer that failed."""

    error: MessagesErrorBody
    request_id: str


MessageStreamEvent = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | MessageErrorEvent
    | AgenticToolCallProgress
    | AgenticToolApprovalRequired
)
