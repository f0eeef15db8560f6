"""`POST /v1/chat/completions`: the answer, and the chunks of a stream."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from penstock.api.schema.agent import AgenticToolCall, FileObject
from penstock.api.schema.tools import CalledFunction, ToolCall
from penstock.api.schema.usage import CompletionUsage

Finish = Literal["stop", "length", "tool_calls", "function_call"]


class TokenAlternative(Struct):
    """A token with its log-probability and its UTF-8 bytes."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(Struct):
    """A token of the answer, with the most likely tokens at its position in `top_logprobs`."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenAlternative]


class ChatLogprobs(Struct):
    """The log-probabilities of the tokens of an answer or of a delta."""

    content: list[TokenLogprobs]


class ChatAnswerMessage(Struct):
    """The assistant's message. `content` is null if the model only called functions. If the request
    has `functions`, `function_call` takes the place of `tool_calls`."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatCompletionResponseChoice(Struct):
    """One of the `n` answers."""

    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletionResponse(Struct):
    """A complete chat completion. `session_id`: the session of the request. `agentic_tool_calls`
    and `files`: calls that the server ran and files that they made, absent if there are none.
    `adapter_generation`: the exact adapter that was used."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionResponseChoice]
    usage: CompletionUsage
    adapter_generation: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    agentic_tool_calls: list[AgenticToolCall] | UnsetType = UNSET
    files: list[FileObject] | UnsetType = UNSET


class FunctionDelta(Struct):
    """A piece of a function call. `name` is in the first piece only. `arguments`: the next piece of
    the arguments' JSON text."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct):
    """A piece of the tool call number `index` of a choice. `id` and `type` are in the first piece
    only."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct):
    """The next piece of a choice. Only the first chunk of a choice has `role`; its `content` is
    null if reasoning or a call follows instead of text."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChatCompletionChunkChoice(Struct):
    """A choice in a chunk. `finish_reason` is null until the choice has ended."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatCompletionChunkResponse(Struct):
    """One chunk of a stream, which ends with `[DONE]`. Only the last chunk has `usage`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionChunkChoice]
    usage: CompletionUsage | UnsetType = UNSET
    adapter_generation: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
