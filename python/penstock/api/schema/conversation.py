"""The request fields that chat completions and Anthropic's Messages have in common."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from penstock.api.schema import fields as f
from penstock.api.schema.constraints import Permission
from penstock.api.schema.hosted import RequestedFiles, WebSearchOptions
from penstock.api.schema.sampling import AnswerFields

Effort = Annotated[
    str, Meta(description="off, none, minimal, low, medium, high, xhigh or max, in any case.")
]


class ChatTemplateArguments(Struct):
    """Arguments of the chat template. The request's own fields of the same names take
    precedence."""

    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None


class ConversationFields(AnswerFields, kw_only=True):
    """Fields for the length of the answer, thinking, server-side tools and the session."""

    max_tokens: f.MaxTokens | None = None
    max_completion_tokens: f.MaxTokens | None = None
    truncate_sequence: f.Truncate | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: ChatTemplateArguments | None = None
    max_tool_rounds: f.MaxRounds | None = None
    agent_permission: Annotated[Permission | None, Meta(description="`ask` needs `stream`.")] = None
    code_execution_permission: Permission | None = None
    web_search_options: WebSearchOptions | None = None
    session_id: f.SessionId | None = None
    files: RequestedFiles | None = None
