"""`POST /v1/completions`: the request, the answer, and the chunks of a stream."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.api.schema import fields as f
from penstock.api.schema.sampling import AnswerFields
from penstock.api.schema.usage import CompletionUsage
from penstock.dialog.ranges import MAX_INTEGER

MaxTokens = Annotated[
    int,
    Meta(
        ge=0,
        le=MAX_INTEGER,
        description="The largest number of tokens to generate; 0 needs `echo`.",
    ),
]


class CompletionRequest(AnswerFields, kw_only=True):
    """A text that the model continues."""

    prompt: f.TextOrTokenIds
    suffix: Annotated[str | None, Meta(description="The text after the gap to fill.")] = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    n: f.Choices | None = None
    best_of: Annotated[
        f.Choices | None,
        Meta(description="Number of answers made, of which the `n` likeliest are sent; no stream."),
    ] = None
    echo: bool | None = None
    stop: f.Stop | None = None
    logprobs: f.TopLogprobs | None = None
    truncate_sequence: f.Truncate | None = None
    max_tool_rounds: f.Ignored = None
    user: f.Ignored = None
    stream_options: f.Ignored = None
    metadata: f.Ignored = None
    service_tier: f.Ignored = None
    parallel_tool_calls: f.Ignored = None
    store: f.Ignored = None
    tools: f.Ignored = None
    tool_choice: f.Ignored = None


class CompletionLogprobs(Struct):
    """The log-probabilities of the tokens of an answer or of a chunk, in four lists of equal
    length. The first token of an echoed prompt has null in `token_logprobs` and `top_logprobs`.
    `text_offset`: where each token begins in the text, in characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionResponseChoice(Struct):
    """One of the answers."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class CompletionResponse(Struct):
    """A complete text completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionResponseChoice]
    usage: CompletionUsage
    adapter_generation: str | UnsetType = UNSET


class CompletionChunkChoice(Struct):
    """A choice in a chunk. `finish_reason` is null until the choice has ended."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionChunkResponse(Struct):
    """One chunk of a stream, which ends with `[DONE]`. Only the last chunk has `usage`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChunkChoice]
    usage: CompletionUsage | UnsetType = UNSET
    adapter_generation: str | UnsetType = UNSET
