"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.api.schema import fields as f
from penstock.api.schema.constraints import Adapter
from penstock.api.schema.sampling import AnswerFields
from penstock.api.schema.usage import CompletionUsage

_TOKEN_IDS: Final = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
}
_PROMPTS: Final = {"type": "array", "minItems": 1, "maxItems": 2048}
# Several kinds of arrays: more than a msgspec union can say.
Prompt = Annotated[
    Any,
    Meta(
        description="A text, token ids, or several of either.",
        extra_json_schema={
            "anyOf": [
                {"type": "string"},
                _TOKEN_IDS,
                _PROMPTS | {"items": {"anyOf": [{"type": "string"}, _TOKEN_IDS]}},
            ]
        },
    ),
]


class CompletionRequest(AnswerFields, kw_only=True):
    """A text to be continued."""

    prompt: Prompt
    suffix: Annotated[str | None, Meta(description="The text after the gap to fill.")] = None
    model: f.Model | None = None
    stream: bool | None = None
    max_tokens: f.MaxTokens | None = None
    max_completion_tokens: f.MaxTokens | None = None
    n: f.Choices | None = None
    best_of: Annotated[
        f.Choices | None,
        Meta(description="So many are made, the `n` likeliest are sent; not streamed."),
    ] = None
    echo: bool | None = None
    stop: f.Stop | None = None
    logprobs: f.TopLogprobs | None = None
    truncate_sequence: f.Truncate | None = None
    max_tool_rounds: f.Ignored = None
    adapter: Adapter | None = None
    user: f.Ignored = None
    stream_options: f.Ignored = None
    metadata: f.Ignored = None
    service_tier: f.Ignored = None
    parallel_tool_calls: f.Ignored = None
    store: f.Ignored = None
    tools: f.Ignored = None
    tool_choice: f.Ignored = None


class CompletionLogprobs(Struct):
    """The tokens of an answer, or of a piece of it, in four lists of one length. The first token of
    an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionResponseChoice(Struct):
    """One answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class CompletionResponse(Struct):
    """The finished answers."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionResponseChoice]
    usage: CompletionUsage
    adapter_generation: str | UnsetType = UNSET


class CompletionChunkChoice(Struct):
    """`finish_reason` is null until the choice has ended."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionChunkResponse(Struct):
    """One event of a stream, which ends with `[DONE]`. The last chunk has the usage."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChunkChoice]
    usage: CompletionUsage | UnsetType = UNSET
    adapter_generation: str | UnsetType = UNSET
