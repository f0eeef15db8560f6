"""Builds grammars for whole answers: unconstrained reasoning, then the tool calls or the text that
the client asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.dialog import FunctionTool
from penstock.grammar.lark import ANY_TEXT, LarkGrammar
from penstock.text.tool_parsers.call_format import arguments_schema
from penstock.text.tool_parsers.call_grammar import SPACE, call, ending, opening, text_or_calls
from penstock.text.tool_parsers.syntax import (
    AnswerSyntax,
    Harmony,
    ReasoningSyntax,
    Section,
    ToolSyntax,
)

ANSWER: Final = "answer"
"""Name of the client's own grammar. The grammar of the whole answer refers to it."""
Thinking = Literal["open", "possible", "none"]


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """The constraints on an answer.

    - `tools`: the functions that may be called.
    - `calls`: tool calls: "none", "may" (optional), "must" (at least one) or "one" (exactly one).
    - `answer`: the serialized grammar of the text, or None if the text is unconstrained.
    - `thinking`: "open" if the prompt has opened the reasoning, "possible" if the model may open
      it, "none" for an answer without reasoning.
    """

    tools: tuple[FunctionTool, ...] = ()
    calls: Literal["none", "may", "must", "one"] = "none"
    answer: str | None = None
    thinking: Thinking = "none"


def answer_grammar(syntax: AnswerSyntax, control: Mapping[str, int], rules: AnswerRules) -> str:
    """Return the serialized grammar of an answer. `control` maps the text of the model's control
    tokens to their ids."""
    grammar = LarkGrammar(control)
    if isinstance(syntax.calls, Harmony):
        start = _harmony(grammar, rules)
    else:
        start = _answer(grammar, syntax.calls, rules)
        if syntax.reasoning is not None:
            start = _reasoned(grammar, syntax.reasoning, rules.thinking, start)
    grammars: list[dict[str, Any]] = [{"lark_grammar": grammar.text(start)}]
    if rules.answer is not None:
        first, *others = json.loads(rules.answer)["grammars"]
        grammars += [{**first, "name": ANSWER}, *others]
    return json.dumps({"grammars": grammars})


def _answer(grammar: LarkGrammar, syntax: ToolSyntax | Harmony | None, rules: AnswerRules) -> str:
    text = f"@{ANSWER}" if rules.answer is not None else None
    if rules.calls == "none" or not isinstance(syntax, ToolSyntax):
        return text or grammar.rule(ANY_TEXT)
    if rules.calls in ("must", "one"):
        return _calls(grammar, syntax, rules)
    if text is not None:
        return grammar.one_of([text, _calls(grammar, syntax, rules)])
    return text_or_calls(grammar, syntax, rules.tools)


def _calls(grammar: LarkGrammar, syntax: ToolSyntax, rules: AnswerRules) -> str:
    """Return an expression for tool calls only, in one of the syntax's `forced_sections`."""
    return grammar.one_of(_calls_in(grammar, syntax, s, rules) for s in syntax.forced_sections)


def _calls_in(
    grammar: LarkGrammar, syntax: ToolSyntax, section: Section, rules: AnswerRules
) -> str:
    before = opening(syntax, section)
    first, end = call(grammar, syntax, rules.tools, before), ending(grammar, syntax, section)
    if rules.calls == "one":
        return f"{first} {end}"
    if syntax.section_per_call:
        again = call(grammar, syntax, rules.tools, syntax.section_separator + before)
        return f"{first} {end} ({again} {end})*"
    return f"{first} ({call(grammar, syntax, rules.tools, syntax.format.call_separator)})* {end}"


def _reasoned(grammar: LarkGrammar, tags: ReasoningSyntax, thinking: Thinking, answer: str) -> str:
    """Return an expression for unconstrained reasoning, then the answer."""
    if thinking == "none":
        return answer
    whole = grammar.rule(answer)
    space = grammar.terminal(SPACE)
    if tags.answer is not None:
        tagged = f"{grammar.literal(tags.answer[0])} {space} {whole}"
        whole = grammar.one_of([tagged, whole])
    rest = f"{grammar.up_to(tags.close)} {space} {whole}"
    if thinking == "open":
        return rest
    return grammar.one_of([f"{grammar.literal(tags.open)} {rest}", whole])


def _harmony(grammar: LarkGrammar, rules: AnswerRules) -> str:
    """Return an expression for a Harmony answer: analysis and preamble messages, then the final
    message or a tool call."""
    literal = grammar.literal
    text = grammar.rule(ANY_TEXT)
    go_on = literal("<|end|><|start|>assistant")
    analysis = f"{literal('<|channel|>analysis<|message|>')} {text} {go_on}"
    preamble = f"{literal('<|channel|>commentary<|message|>')} {text} {go_on}"
    answer = f"@{ANSWER}" if rules.answer is not None else text
    final = f"{literal('<|channel|>final<|message|>')} {answer}"
    calls = [
        f"{literal(f'<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>')}"
        f" {grammar.schema(arguments_schema(tool), strict=tool.strict)}"
        for tool in rules.tools
    ]
    ends = [final] if rules.calls in ("none", "may") else []
    ends += calls if rules.calls != "none" else []
    before: Sequence[str] = [analysis] if rules.calls in ("must", "one") else [analysis, preamble]
    return f"({grammar.one_of(before)})* {grammar.one_of(ends)}"
