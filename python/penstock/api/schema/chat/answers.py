"""`POST /v1/chat/completions`: the answer, and the chunks of a streamed one."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from penstock.api.schema.agent import AgenticToolCall, FileObject
from penstock.api.schema.tools import CalledFunction, ToolCall
from penstock.api.schema.usage import CompletionUsage

Finish = Literal["stop", "length", "tool_calls", "function_call"]


class TokenAlternative(Struct):
    """A token, the logarithm of its probability, and its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(Struct):
    """A token of the answer beside the likeliest ones."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TokenAlternative]


class ChatLogprobs(Struct):
    """The tokens of an answer, or of a piece of it."""

    content: list[TokenLogprobs]


class ChatAnswerMessage(Struct):
    """`content` is null if the model only called functions. `function_call` instead of
    `tool_calls` answers a request with `functions`."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatCompletionResponseChoice(Struct):
    """One answer."""

    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletionResponse(Struct):
    """The finished answers. `session_id`: that of the request, if it had one. Calls and files of
    the server's tools are there if there were any. `adapter_generation`: the exact adapter."""

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
    """The name comes once, the arguments in pieces."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct):
    """A piece of the call `index`."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct):
    """The new piece. The role is on the first chunk of a choice only, with null as `content` if no
    text comes next."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChatCompletionChunkChoice(Struct):
    """`finish_reason` is null until the choice has ended."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class ChatCompletionChunkResponse(Struct):
    """One event of a stream, which ends with `[DONE]`. The last chunk has the usage."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionChunkChoice]
    usage: CompletionUsage | UnsetType = UNSET
    adapter_generation: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
