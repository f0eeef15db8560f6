"""Anthropic's Messages: the answer, the events of a stream, and errors."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from penstock.api.schema.agent import (
    AgenticToolApprovalRequired,
    AgenticToolCallProgress,
    FileObject,
)
from penstock.api.schema.messages import server_tool_blocks as t

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn"]
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
    """The model's reasoning. `signature`: a digest of the text; clients drop thinking blocks that
    have none."""

    thinking: str
    signature: str


class AnsweredToolUse(Struct, tag="tool_use", tag_field="type"):
    """A call of one of the client's tools. In `content_block_start`, `input` is still empty."""

    id: str
    name: str
    input: dict[str, Any]


AnsweredBlock = (
    AnsweredText
    | AnsweredThinking
    | AnsweredToolUse
    | t.AnsweredServerToolUse
    | t.SearchResultAnswer
    | t.FetchResultAnswer
    | t.PythonResultAnswer
    | t.ShellResultAnswer
    | t.AnsweredMcpToolUse
    | t.McpResultAnswer
)


class ServerToolUsage(Struct):
    """The number of searches and of page retrievals."""

    web_search_requests: int
    web_fetch_requests: int


class MessageTokensDetails(Struct):
    """A breakdown of `output_tokens`. `thinking_tokens`: tokens of reasoning."""

    thinking_tokens: int


class MessageUsage(Struct):
    """Token counts. The prompt has `input_tokens` + `cache_creation_input_tokens` +
    `cache_read_input_tokens` tokens; `cache_read_input_tokens` came from the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessageTokensDetails
    server_tool_use: ServerToolUsage | UnsetType = UNSET


class MessageResponse(Struct, kw_only=True):
    """A complete message; in `message_start`, a message whose `content` is still empty."""

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
    """The number of tokens of the prompt that a request would send to the model."""

    input_tokens: int


class MessageStart(Struct, tag="message_start", tag_field="type"):
    """The first event of a stream."""

    message: MessageResponse


class ContentBlockStart(Struct, tag="content_block_start", tag_field="type"):
    """Event: a content block begins. `content_block` is still empty."""

    index: int
    content_block: AnsweredBlock


class TextBlockDelta(Struct, tag="text_delta", tag_field="type"):
    """A piece of a text block."""

    text: str


class ThinkingBlockDelta(Struct, tag="thinking_delta", tag_field="type"):
    """A piece of a thinking block."""

    thinking: str


class SignatureDelta(Struct, tag="signature_delta", tag_field="type"):
    """The signature of a thinking block, sent after its text."""

    signature: str


class InputJsonDelta(Struct, tag="input_json_delta", tag_field="type"):
    """A piece of the JSON text of a tool call's input."""

    partial_json: str


class ContentBlockDelta(Struct, tag="content_block_delta", tag_field="type"):
    """Event: the next piece of the block number `index`."""

    index: int
    delta: TextBlockDelta | ThinkingBlockDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(Struct, tag="content_block_stop", tag_field="type"):
    """Event: the block number `index` is complete."""

    index: int


class MessageEnd(Struct):
    """The reason why the answer ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(Struct, tag="message_delta", tag_field="type"):
    """Event: the answer has ended. `usage` counts the whole answer."""

    delta: MessageEnd
    usage: MessageUsage
    session_id: str | UnsetType = UNSET


class MessageStop(Struct, tag="message_stop", tag_field="type"):
    """The last event of a stream."""


class Ping(Struct, tag="ping", tag_field="type"):
    """Event that keeps the connection open while the model produces no output."""


class MessagesErrorBody(Struct):
    """An error. `message`: the problem and, for a wrong field, the values that are accepted."""

    type: ErrorType
    message: str


class MessagesError(Struct):
    """The body of every error answer of the messages routes."""

    type: Literal["error"]
    error: MessagesErrorBody
    request_id: str


class MessageErrorEvent(Struct, tag="error", tag_field="type"):
    """The last event of a stream that failed."""

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
