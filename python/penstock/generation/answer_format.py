"""Finds the format of the answers to a request: reasoning, tool calls and shown control tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.base.errors import InvalidRequest
from penstock.dialog import FunctionTool, GenerateRequest
from penstock.text import Tokenizer
from penstock.text.tool_parsers import AnswerParser, AnswerSyntax, Harmony
from penstock.text.tool_parsers.answer_grammar import Thinking

TAIL_TOKENS = 16
"""Number of tokens at the end of a prompt in which the tag that opens the reasoning is searched."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The format of one request's answers.

    - `syntax`: the syntax of reasoning and tool calls; None: plain text only.
    - `tools`: the functions that may be called.
    - `shown_control`: control tokens that the parser must see.
    - `thinking`: "open" if the prompt has opened the reasoning, "possible" if the model may open
      it.
    """

    syntax: AnswerSyntax | None = None
    tools: tuple[FunctionTool, ...] = ()
    shown_control: frozenset[int] = frozenset()
    thinking: Thinking = "none"

    def parser(self) -> AnswerParser | None:
        """Return a new parser for one choice, None for plain text."""
        if self.syntax is None:
            return None
        return AnswerParser(self.syntax, self.tools, thinking=self.thinking == "open")


PLAIN = AnswerFormat()


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """Finds the format of the answers to a request, for one model."""

    tokenizer: Tokenizer
    syntax: AnswerSyntax
    _control: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        tokenizer = self.tokenizer
        steering = {
            t: i for t, i in tokenizer.control_tokens.items() if i not in tokenizer.stop_ids
        }
        object.__setattr__(self, "_control", steering)

    def of(self, request: GenerateRequest, prompt_ids: tuple[int, ...]) -> AnswerFormat:
        """Return the format of the answers to a request. `prompt_ids`: token ids of its prompt.

        Raises InvalidRequest for an answer prefix if the model cannot continue one.
        """
        tools = callable_tools(request)
        syntax = self.syntax
        if request.answer_prefix and isinstance(syntax.calls, Harmony):
            raise InvalidRequest(
                "this model cannot continue an answer prefix; end the messages with one of a user",
                field="messages",
                code="unsupported_value",
            )
        if request.messages is None and not tools:
            return PLAIN
        if not tools and syntax.reasoning is None and not isinstance(syntax.calls, Harmony):
            return PLAIN
        return AnswerFormat(
            syntax, tools, self._shown(bool(tools)), self._thinking(request, prompt_ids)
        )

    def _shown(self, with_calls: bool) -> frozenset[int]:
        """Return the control tokens that are part of the texts around reasoning or calls."""
        syntax = self.syntax
        marks: list[str] = []
        if syntax.calls is not None and (with_calls or isinstance(syntax.calls, Harmony)):
            marks += syntax.calls.marks()
        if syntax.reasoning is not None:
            marks += (syntax.reasoning.open, syntax.reasoning.close)
        return frozenset(
            index for text, index in self._control.items() if any(text in mark for mark in marks)
        )

    def _thinking(self, request: GenerateRequest, prompt_ids: tuple[int, ...]) -> Thinking:
        tags = self.syntax.reasoning
        if isinstance(self.syntax.calls, Harmony):
            return "possible"
        if tags is None:
            return "none"
        tail = self._text(prompt_ids[-TAIL_TOKENS:]).rstrip()
        if tail.endswith(tags.open):
            return "open"
        closed = tail.endswith(tags.close) or request.reasoning.enabled is False
        return "none" if closed else "possible"

    def _text(self, token_ids: Iterable[int]) -> str:
        return b"".join(map(self.tokenizer.token_bytes, token_ids)).decode("utf-8", "replace")


def callable_tools(request: GenerateRequest) -> tuple[FunctionTool, ...]:
    """Return the tools that an answer may call."""
    policy = request.tool_policy
    if policy.mode == "none":
        return ()
    return tuple(t for t in request.tools if not policy.names or t.name in policy.names)
