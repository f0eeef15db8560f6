"""The Responses API: the request, and the response resource."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.api.schema import fields as f
from penstock.api.schema.constraints import FlatJsonSchemaFormat, JsonObjectFormat, TextFormat
from penstock.api.schema.conversation import Effort
from penstock.api.schema.hosted import (
    CodeInterpreterTool,
    RequestedFiles,
    ShellTool,
    WebSearchPreviewTool,
    WebSearchTool,
)
from penstock.api.schema.responses.input_items import InputItem
from penstock.api.schema.responses.output_items import OutputItem, StoredItem
from penstock.api.schema.sampling import AnswerFields
from penstock.api.schema.tools import FunctionTool, NamespaceTool, ToolChoice

Status = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]
Summary = Literal["auto", "concise", "detailed"]
Include = Literal[
    "file_search_call.results",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "code_interpreter_call.outputs",
    "web_search_call.action.sources",
    "web_search_call.results",
]
Tool = Annotated[
    FunctionTool
    | NamespaceTool
    | WebSearchTool
    | WebSearchPreviewTool
    | CodeInterpreterTool
    | ShellTool,
    Meta(extra={"code": f.UNSUPPORTED}),
]
Metadata = Annotated[dict[str, Any], Meta(max_length=16)]
NoToolCallLimit = Annotated[
    None,
    f.refused("is not supported; `max_tool_rounds` bounds the rounds of the server's tools"),
]
NoConversation = Annotated[
    None,
    f.refused("is not supported; continue with `previous_response_id`"),
]
NoStoredPrompt = Annotated[
    None,
    f.refused("is not supported: there are no stored prompts; send `instructions` and `input`"),
]


class TextConfig(Struct):
    """The format that the text of the answer must have."""

    format: TextFormat | FlatJsonSchemaFormat | JsonObjectFormat | None = None


class ReasoningConfig(Struct):
    """Options for reasoning. `effort`: how hard to think. `summary` and `generate_summary` have no
    effect: the answer always contains the whole reasoning."""

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Annotated[Summary | None, Meta(description="Older than `summary`.")] = None


class StreamOptions(Struct):
    """Accepted without effect: the last event of a stream always contains the usage."""

    include_usage: bool | None = None


class OpenResponsesCreateRequest(AnswerFields, kw_only=True):
    """Input to which the model writes an answer; may continue a stored response."""

    input: Annotated[
        f.NonEmpty | Annotated[list[InputItem], Meta(min_length=1)],
        Meta(description="A text, or messages and other items."),
    ]
    instructions: Annotated[str | None, Meta(description="Of this turn alone.")] = None
    previous_response_id: Annotated[
        f.NonEmpty | None, Meta(description="A stored response to continue.")
    ] = None
    max_output_tokens: f.MaxTokens | None = None
    max_tokens: f.MaxTokens | None = None
    max_completion_tokens: f.MaxTokens | None = None
    n: f.Choices | None = None
    stop: f.Stop | None = None
    logprobs: bool | None = None
    top_logprobs: f.TopLogprobs | None = None
    include: list[Include] | None = None
    stream_options: StreamOptions | None = None
    store: Annotated[bool | None, Meta(description="Absent: true.")] = None
    background: Annotated[bool | None, Meta(description="Needs `store`.")] = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_rounds: f.MaxRounds | None = None
    metadata: Metadata | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: Annotated[bool, Meta(extra_json_schema={"const": True})] | None = None
    files: RequestedFiles | None = None
    max_tool_calls: NoToolCallLimit = None
    conversation: NoConversation = None
    prompt: NoStoredPrompt = None
    enable_thinking: f.Ignored = None
    reasoning_effort: f.Ignored = None
    truncate_sequence: f.Ignored = None
    session_id: f.Ignored = None
    agent_permission: f.Ignored = None
    code_execution_permission: f.Ignored = None
    web_search_options: f.Ignored = None
    user: f.Ignored = None
    service_tier: f.Ignored = None
    safety_identifier: f.Ignored = None
    prompt_cache_key: f.Ignored = None


class InputTokensDetails(Struct):
    """A breakdown of `input_tokens`. `cached_tokens`: tokens from the prefix cache.
    `cache_write_tokens`: always 0."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Struct):
    """A breakdown of `output_tokens`. `reasoning_tokens`: tokens of reasoning."""

    reasoning_tokens: int


class ResponseUsage(Struct):
    """Token counts, summed over all choices."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Struct):
    """The error with which a response failed."""

    type: str
    code: str
    message: str


class IncompleteDetails(Struct):
    """The reason why a response is incomplete."""

    reason: Literal["max_output_tokens", "max_tool_rounds", "content_filter", "interrupted"]


class ResponseResource(Struct):
    """A response: its status, its output, and the request's fields that it repeats; fields unknown
    to the server are not repeated. Until the response has ended, `output` is empty. `completed_at`:
    Unix seconds; null unless `status` is `completed`."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    model: str
    output: list[OutputItem]
    output_text: str | None
    reasoning: Annotated[str | None, Meta(description="All that was thought.")]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    usage: ResponseUsage | None
    background: bool
    frequency_penalty: float | None
    presence_penalty: float | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: Metadata
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float | None
    text: TextConfig
    tool_choice: ToolChoice
    tools: list[Tool]
    top_logprobs: int | None
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    adapter_generation: str | UnsetType = UNSET


class ResponseDeleted(Struct):
    """Confirms that a stored response was deleted."""

    id: str
    object: Literal["response.deleted"]
    deleted: bool


class InputTokens(Struct):
    """The number of tokens of the prompt that a request would send to the model."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ItemList(Struct):
    """A page of the input items of a response, newest first unless `order` is `asc`."""

    object: Literal["list"]
    data: list[StoredItem]
    first_id: str | None
    last_id: str | None
    has_more: bool
