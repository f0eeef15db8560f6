"""Selects a model's chat template and the syntax of its reasoning and tool calls."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.base.errors import ModelError
from penstock.models.media.prepared import MediaKind
from penstock.models.tokenizer.tokenizer_data import TextParts
from penstock.text import ChatTemplate, Tokenizer
from penstock.text.chat_templates.chat_template import NO_MEDIA
from penstock.text.chat_templates.known_templates import known_template
from penstock.text.tool_parsers import AnswerSyntax, ToolSyntax, detect_answer_syntax

log = logging.getLogger(__name__)


def select_chat_template(
    parts: TextParts,
    tokenizer: Tokenizer,
    tool_syntax: str | None,
    placeholders: Mapping[MediaKind, str] = NO_MEDIA,
) -> tuple[ChatTemplate | None, AnswerSyntax]:
    """Return the chat template and the answer syntax of a model.

    The template is the model's own if it works, else a built-in template that fits the model, else
    None. `tool_syntax`: the name of the tool call syntax, None to detect it. `placeholders`: see
    `ChatTemplate`.
    """
    tokens = tokenizer.added_tokens
    if parts.chat_template is not None:
        sources = parts.chat_template + (parts.tool_template or "")
        syntax = detect_answer_syntax(sources, tokens, tool_syntax)
        compiler = _Compiler(parts, syntax, placeholders)
        template = compiler.working(parts.chat_template, compiler.for_tools())
        if template is not None:
            return template, syntax
    syntax = detect_answer_syntax(None, tokens, tool_syntax)
    known = known_template(tokens, parts.model_id)
    if known is None:
        log.warning("%s: no chat template, only completions", parts.model_id)
        return None, syntax
    log.info("%s: a chat template that fits its control tokens is used", parts.model_id)
    return _Compiler(parts, syntax, placeholders).working(known), syntax


@dataclass(frozen=True, slots=True)
class _Compiler:
    """Compiles templates of one model. Failures are logged."""

    parts: TextParts
    syntax: AnswerSyntax
    placeholders: Mapping[MediaKind, str]

    def for_tools(self) -> ChatTemplate | None:
        """Return the model's separate template for requests with tools. Returns None if there is no
        such template or it does not show tools."""
        if self.parts.tool_template is None:
            return None
        template = self._compiled(self.parts.tool_template)
        if template is not None and not template.capabilities.tools:
            log.warning("%s: its chat template for tools shows none", self.parts.model_id)
            return None
        return template

    def working(self, source: str, for_tools: ChatTemplate | None = None) -> ChatTemplate | None:
        """Compile a template. Returns None if it cannot be compiled or does not show messages."""
        template = self._compiled(source, for_tools)
        if template is not None and not template.capabilities.users:
            log.warning("%s: its chat template shows no conversation", self.parts.model_id)
            return None
        return template

    def _compiled(self, source: str, for_tools: ChatTemplate | None = None) -> ChatTemplate | None:
        calls = self.syntax.calls
        try:
            return ChatTemplate(
                source,
                bos_token=self.parts.bos_token,
                eos_token=self.parts.eos_token,
                calls=calls if isinstance(calls, ToolSyntax) else None,
                for_tools=for_tools,
                placeholders=self.placeholders,
            )
        except ModelError as error:
            log.warning("%s: its chat template cannot be used: %s", self.parts.model_id, error)
            return None
