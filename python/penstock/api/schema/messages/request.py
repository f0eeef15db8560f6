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

MaxUses = Annotated[
    int, Meta(ge=1, le=f.MAX_INTEGER, description="The most searches and page retrievals.")
]


class MessagesTool(FunctionFields, kw_only=True):
    """A tool of the client (`name`, `input_schema`), or a tool of the server, selected by its dated
    `type`. `allowed_domains`, `blocked_domains`, `user_location` and `max_uses` apply to web search
    only."""

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
    max_uses: MaxUses | None = None
    cache_control: f.Ignored = None


class MessagesToolChoice(Struct):
    """Determines which tools the model calls. `auto`: the model decides; `any`: at least one tool;
    `tool`: the tool `name`; `none`: no tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct):
    """Whether the model thinks. With `adaptive` and `between_tools` the model's chat template
    decides."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: f.Ignored = None


class OutputFormat(Struct):
    """The answer is JSON that matches `schema`."""

    type: Literal["json_schema"]
    schema: JsonSchema


class OutputConfig(Struct):
    """Options for the answer. `effort`: how hard to think, if the model thinks. `format`: the JSON
    schema that the answer must match."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class ContainerSkill(Struct):
    """An uploaded skill to make available to the server's shell."""

    skill_id: str
    type: Literal["custom"] | None = None
    version: SkillVersion | None = None


class SkillContainer(Struct):
    """The skills that the server's shell can use. Naming any skill turns the shell on."""

    skills: list[ContainerSkill] | None = None


class MessagesRequest(ConversationFields, kw_only=True):
    """A conversation, to which the model writes the next answer. If the last message is the
    assistant's, the answer continues its text."""

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
