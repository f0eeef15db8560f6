"""Anthropic's messages interface: the request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f
from penstock.api.schema.chat.request import ChatTemplateArguments, Effort
from penstock.api.schema.constraints import Adapter, JsonSchema, Permission
from penstock.api.schema.hosted import Domains, RequestedFiles, UserLocation, WebSearchOptions
from penstock.api.schema.messages.content_blocks import InputMessageParam, TextBlock
from penstock.api.schema.sampling import AnswerFields
from penstock.api.schema.tools import ToolName


class MessagesTool(Struct, kw_only=True):
    """A tool of the client: `name` and `input_schema`. Or one of the server, by its dated type:
    `max_uses` is accepted and ignored, the domains and the location are of the search."""

    type: Annotated[
        str | None,
        Meta(
            description="`custom` (the default), `web_search_...` or `code_execution_...`.",
            extra_json_schema={"pattern": "^(custom$|web_search_|code_execution_)"},
        ),
    ] = None
    name: ToolName | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    allowed_domains: Domains | None = None
    blocked_domains: Domains | None = None
    user_location: UserLocation | None = None
    max_uses: f.Ignored = None
    cache_control: f.Ignored = None


class MessagesToolChoice(Struct):
    """`any`: one of the tools must be called; `tool`: that one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct):
    """Whether to think; `adaptive` and `between_tools` leave it to the model."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: f.Ignored = None


class OutputFormat(Struct):
    """The answer is JSON that matches a schema."""

    type: Literal["json_schema"]
    schema: JsonSchema


class OutputConfig(Struct):
    """How hard to think, if it is thought, and what the answer must match."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class ContainerSkill(Struct):
    """An uploaded skill; absent or `latest`: its newest version."""

    skill_id: str
    type: Literal["custom"] | None = None
    version: int | str | None = None


class SkillContainer(Struct):
    """The skills for the server's shell."""

    skills: list[ContainerSkill] | None = None


class MessagesRequest(AnswerFields, kw_only=True):
    """A chat to be continued. Where its last message is the assistant's, the answer goes on from
    its text."""

    messages: Annotated[list[InputMessageParam], Meta(min_length=1)]
    model: f.Model | None = None
    system: str | list[TextBlock] | None = None
    max_tokens: f.MaxTokens | None = None
    max_completion_tokens: f.MaxTokens | None = None
    stop_sequences: Annotated[list[f.NonEmpty], Meta(max_length=64)] | None = None
    stream: bool | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: Annotated[
        OutputFormat | None, Meta(description="Older than `output_config.format`.")
    ] = None
    container: SkillContainer | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: ChatTemplateArguments | None = None
    adapter: Adapter | None = None
    logprobs: Annotated[
        bool | None, Meta(description="Without effect: a message has no place for them.")
    ] = None
    top_logprobs: Annotated[f.TopLogprobs | None, Meta(description="Without effect.")] = None
    truncate_sequence: f.Truncate | None = None
    max_tool_rounds: f.MaxRounds | None = None
    agent_permission: Annotated[Permission | None, Meta(description="`ask` needs `stream`.")] = None
    code_execution_permission: Permission | None = None
    enable_code_execution: bool | None = None
    web_search_options: WebSearchOptions | None = None
    session_id: Annotated[str, Meta(max_length=256)] | None = None
    files: RequestedFiles | None = None
    metadata: f.Ignored = None
    service_tier: f.Ignored = None
    cache_control: f.Ignored = None
