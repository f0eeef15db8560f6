"""What form the answers to a request take: their channels, and the grammar that binds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.base.errors import InvalidRequest
from penstock.dialog import FunctionTool, GenerateRequest
from penstock.text import Tokenizer
from penstock.text.tool_parsers import AnswerParser, AnswerSyntax, Harmony
from penstock.text.tool_parsers.answer_grammar import Thinking

TAIL_TOKENS = 16
"""So many tokens at the end of a prompt can hold the tag that opens the reasoning."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """`syntax` None: the answer is text and nothing else. `tools`: those that may be called.
    `thinking`: whether the prompt has opened the reasoning, or the model may."""

    syntax: AnswerSyntax | None = None
    tools: tuple[FunctionTool, ...] = ()
    shown_control: frozenset[int] = frozenset()
    thinking: Thinking = "none"

    def parser(self) -> AnswerParser | None:
        """A parser for one choice."""
        if self.syntax is None:
            return None
        return AnswerParser(self.syntax, self.tools, thinking=self.thinking == "open")


PLAIN = AnswerFormat()


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """The forms of one model's answers."""

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
        """The form of the answers to a request whose prompt is `prompt_ids`. Raises InvalidRequest
        where an answer is begun that a model of these channels could not go on with."""
        tools = callable_tools(request)
        syntax = self.syntax
        if request.answer_prefix and isinstance(syntax.calls, Harmony):
            raise InvalidRequest(
                "this model does not go on with an answer that is begun already; let the last"
                " message be a user's",
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
        """Control tokens that are part of a mark."""
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
    """The tools that an answer may call."""
    policy = request.tool_policy
    if policy.mode == "none":
        return ()
    return tuple(t for t in request.tools if not policy.names or t.name in policy.names)
