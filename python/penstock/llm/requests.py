"""Builds requests from the arguments of `LLM` methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, TypeVar, cast

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    AdapterRevision,
    Constraint,
    ConversationInput,
    EmbeddingRequest,
    FunctionTool,
    GenerateRequest,
    HostedTool,
    Limits,
    Message,
    Permissions,
    ReasoningPolicy,
    RequestedFile,
    RerankRequest,
    Sampling,
    TextToImageRequest,
    TextToSpeechRequest,
    ToolPolicy,
)
from penstock.llm.content import ContentPart, content_parts

Prompt: TypeAlias = str | Sequence[int]
EmbeddingInput: TypeAlias = "Prompt | ContentPart | Sequence[ContentPart]"
"""A text or token ids; or an image, or texts and images that make one vector (`content_parts`)."""
ChatMessage: TypeAlias = Message | Mapping[str, Any]
"""A message of `penstock.dialog`, or a dictionary with `role` and `content` (`content_parts`)."""
_R = TypeVar(
    "_R",
    GenerateRequest,
    EmbeddingRequest,
    RerankRequest,
    TextToImageRequest,
    TextToSpeechRequest,
)
_LIMITS = frozenset({"max_tokens", "max_rounds", "min_tokens", "truncate"})


class Options(TypedDict, total=False):
    """Keyword options of the methods that generate text. See `GenerateRequest`, `Limits`."""

    sampling: Sampling
    max_tokens: int | None
    max_rounds: int | None
    min_tokens: int
    truncate: bool
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    cache_salt: str
    n: int
    top_logprobs: int | None
    ignore_eos: bool
    reasoning: ReasoningPolicy
    tools: Sequence[FunctionTool]
    tool_policy: ToolPolicy
    hosted: Sequence[HostedTool]
    permissions: Permissions
    files: Sequence[RequestedFile]
    session: str | None
    constraint: Constraint | None
    adapter: str | AdapterRevision | None


def typed(request: _R) -> _R:
    """Convert and check the types of a request's fields. Raises InvalidRequest for a value of a
    wrong type."""
    try:
        return msgspec.convert(msgspec.to_builtins(request), type(request))
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidRequest(str(error)) from error


def completion_requests(
    prompts: Prompt | Sequence[Prompt], options: Options
) -> list[GenerateRequest]:
    """Return one request per prompt. Raises TypeError for an unknown option."""
    common = _options(options)
    return [
        GenerateRequest(prompt=prompt if isinstance(prompt, str) else tuple(prompt), **common)
        for prompt in as_prompts(prompts)
    ]


def embedding_inputs(
    inputs: EmbeddingInput | Sequence[EmbeddingInput],
) -> tuple[str | tuple[int, ...] | ConversationInput, ...]:
    """Return the inputs of embedding requests. A single input becomes one of a list. Raises
    InvalidRequest for a part that cannot be used."""
    listed = cast("Sequence[EmbeddingInput]", [inputs] if _is_single(inputs) else inputs)
    return tuple(_embedding_input(one, f"input[{index}]") for index, one in enumerate(listed))


def _is_single(inputs: Any) -> bool:
    """Whether a value is one input: a text, a part, or token ids."""
    if isinstance(inputs, str | bytes) or not isinstance(inputs, Sequence):
        return True
    return len(inputs) > 0 and isinstance(inputs[0], int)


def _embedding_input(given: Any, where: str) -> str | tuple[int, ...] | ConversationInput:
    if isinstance(given, str):
        return given
    if isinstance(given, Sequence) and not isinstance(given, bytes):
        if all(isinstance(one, int) for one in given):
            return tuple(given)
        return ConversationInput((Message("user", content_parts(given, where)),))
    return ConversationInput((Message("user", content_parts([given], where)),))


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Return a sequence of prompts. A single prompt (a string or token ids) becomes a list."""
    single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return cast("Sequence[Prompt]", [prompts] if single else prompts)


def chat_request(messages: Sequence[ChatMessage], options: Options) -> GenerateRequest:
    """Return a request to answer a conversation. Raises InvalidRequest for a dictionary that is not
    a message, and TypeError for an unknown option."""
    converted = tuple(_message(message, index) for index, message in enumerate(messages))
    return GenerateRequest(messages=converted, **_options(options))


def single_request(given: str | Sequence[ChatMessage], options: Options) -> GenerateRequest:
    """Return a request for a prompt or for a conversation. Raises the errors of `chat_request`."""
    if isinstance(given, str):
        return GenerateRequest(prompt=given, **_options(options))
    return chat_request(given, options)


def _message(message: ChatMessage, index: int) -> Message:
    if isinstance(message, Message):
        return message
    fields: Any = message if isinstance(message, Mapping) else {}
    if set(fields) != {"role", "content"}:
        raise InvalidRequest("a message has a role and a content", field="messages")
    return Message(fields["role"], content_parts(fields["content"], f"messages[{index}].content"))


def _options(options: Options) -> dict[str, Any]:
    """Convert keyword options to fields of GenerateRequest. Raises TypeError for an unknown
    option."""
    unknown = set(options) - Options.__optional_keys__
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}")
    fields: dict[str, Any] = {**options}
    limits = {key: fields.pop(key) for key in _LIMITS & fields.keys()}
    fields["limits"] = Limits(**limits)
    for several in ("tools", "hosted", "files", "stop_token_ids"):
        fields[several] = tuple(fields.get(several, ()))
    stop = fields.get("stop", ())
    fields["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    return fields
