"""Selects a model's chat template and the syntax of its reasoning and tool calls."""

from __future__ import annotations

import logging

from penstock.base.errors import ModelError
from penstock.models.tokenizer.tokenizer_data import TextParts
from penstock.text import ChatTemplate, Tokenizer
from penstock.text.chat_templates.known_templates import known_template
from penstock.text.tool_parsers import AnswerSyntax, ToolSyntax, detect_answer_syntax

log = logging.getLogger(__name__)


def select_chat_template(
    parts: TextParts, tokenizer: Tokenizer, tool_syntax: str | None
) -> tuple[ChatTemplate | None, AnswerSyntax]:
    """Return the chat template and the answer syntax of a model.

    The template is the model's own if it works, else a built-in template that fits the model, else
    None. `tool_syntax`: the name of the tool call syntax, None to detect it.
    """
    tokens = tokenizer.added_tokens
    if parts.chat_template is not None:
        sources = parts.chat_template + (parts.tool_template or "")
        syntax = detect_answer_syntax(sources, tokens, tool_syntax)
        template = _working(parts, parts.chat_template, syntax, _for_tools(parts, syntax))
        if template is not None:
            return template, syntax
    syntax = detect_answer_syntax(None, tokens, tool_syntax)
    known = known_template(tokens, parts.model_id)
    if known is None:
        log.warning("%s: no chat template, only completions", parts.model_id)
        return None, syntax
    log.info("%s: a chat template that fits its control tokens is used", parts.model_id)
    return _working(parts, known, syntax), syntax


def _for_tools(parts: TextParts, syntax: AnswerSyntax) -> ChatTemplate | None:
    """Return the model's separate template for requests with tools. Returns None if there is no
    such template or it does not show tools."""
    if parts.tool_template is None:
        return None
    template = _compiled(parts, parts.tool_template, syntax)
    if template is not None and not template.capabilities.tools:
        log.warning("%s: its chat template for tools shows none", parts.model_id)
        return None
    return template


def _working(
    parts: TextParts, source: str, syntax: AnswerSyntax, for_tools: ChatTemplate | None = None
) -> ChatTemplate | None:
    """Compile a template. Returns None if it cannot be compiled or does not show messages."""
    template = _compiled(parts, source, syntax, for_tools)
    if template is not None and not template.capabilities.users:
        log.warning("%s: its chat template shows no conversation", parts.model_id)
        return None
    return template


def _compiled(
    parts: TextParts, source: str, syntax: AnswerSyntax, for_tools: ChatTemplate | None = None
) -> ChatTemplate | None:
    calls = syntax.calls
    try:
        return ChatTemplate(
            source,
            bos_token=parts.bos_token,
            eos_token=parts.eos_token,
            calls=calls if isinstance(calls, ToolSyntax) else None,
            for_tools=for_tools,
        )
    except ModelError as error:
        log.warning("%s: its chat template cannot be used: %s", parts.model_id, error)
        return None
