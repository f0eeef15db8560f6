"""Anthropic's Messages: the request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f
from penstock.api.schema.constraints import JsonSchema
from penstock.api.schema.conversation import ConversationFields, Effort
from penstock.api.schema.hosted import Domains, SkillVersion, UserLocation
from penstock.api.schema.messages.content_blocks import InputMessageParam, SystemBlock
from penstock.api.schema.tools import FunctionFields


class MessagesTool(FunctionFields, kw_only=True):
    """A tool of the client, with `name` and `input_schema`; or a tool of the server, by its dated
    type. The domains and the location belong to the search."""

    type: Annotated[
        str | None,
        Meta(
            description="`custom` (the default), `web_search_...` or `code_execution_...`.",
            extra_json_schema={"pattern": "^(custom$|web_search_|code_execution_)"},
        ),
    ] = None
    input_schema: dict[str, Any] | None = None
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
    """How hard to think, if the model thinks, and what the answer must match."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class ContainerSkill(Struct):
    """An uploaded skill."""

    skill_id: str
    type: Literal["custom"] | None = None
    version: SkillVersion | None = None


class SkillContainer(Struct):
    """The skills for the server's shell."""

    skills: list[ContainerSkill] | None = None


class MessagesRequest(ConversationFields, kw_only=True):
    """A conversation to be continued. If its last message is the assistant's, the answer continues
    that message's text."""

    messages: Annotated[list[InputMessageParam], Meta(min_length=1)]
    system: str | list[SystemBlock] | None = None
    stop_sequences: f.StopList | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: Annotated[
        OutputFormat | None, Meta(description="Older than `output_config.format`.")
    ] = None
    container: Annotated[
        SkillContainer | str | None, Meta(description="The id of a container is refused.")
    ] = None
    logprobs: Annotated[
        bool | None, Meta(description="Without effect: a message has no place for them.")
    ] = None
    top_logprobs: Annotated[f.TopLogprobs | None, Meta(description="Without effect.")] = None
    enable_code_execution: bool | None = None
    metadata: f.Ignored = None
    service_tier: f.Ignored = None
    cache_control: f.Ignored = None
