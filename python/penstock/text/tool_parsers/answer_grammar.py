"""Grammars for whole answers: free reasoning, then calls or text as the client asks."""

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
"""Name of the grammar that is the client's own, as the first one refers to it."""
Thinking = Literal["open", "possible", "none"]


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What binds an answer.

    `calls`: "none" are made, they "may" be, "must" be, or exactly "one" is. `answer`: the
    serialized grammar of the text, None where it is free. `thinking`: whether the prompt has opened
    the reasoning, or the model may.
    """

    tools: tuple[FunctionTool, ...] = ()
    calls: Literal["none", "may", "must", "one"] = "none"
    answer: str | None = None
    thinking: Thinking = "none"


def answer_grammar(channels: AnswerSyntax, control: Mapping[str, int], rules: AnswerRules) -> str:
    """The serialized grammar. `control`: text -> id of the model's control tokens."""
    grammar = LarkGrammar(control)
    if isinstance(channels.calls, Harmony):
        start = _harmony(grammar, rules)
    else:
        start = _answer(grammar, channels.calls, rules)
        if channels.reasoning is not None:
            start = _reasoned(grammar, channels.reasoning, rules.thinking, start)
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
    """Calls and nothing else, in the first form that the model begins."""
    return grammar.one_of(_calls_in(grammar, syntax, s, rules) for s in syntax.forms)


def _calls_in(
    grammar: LarkGrammar, syntax: ToolSyntax, section: Section, rules: AnswerRules
) -> str:
    before = opening(syntax, section)
    first, end = call(grammar, syntax, rules.tools, before), ending(grammar, syntax, section)
    if rules.calls == "one":
        return f"{first} {end}"
    if syntax.one_each:
        again = call(grammar, syntax, rules.tools, syntax.gap + before)
        return f"{first} {end} ({again} {end})*"
    return f"{first} ({call(grammar, syntax, rules.tools, syntax.body.between)})* {end}"


def _reasoned(grammar: LarkGrammar, tags: ReasoningSyntax, thinking: Thinking, answer: str) -> str:
    """Reasoning before the answer; nothing in it is bound."""
    if thinking == "none":
        return answer
    whole = grammar.rule(answer)
    space = grammar.terminal(SPACE)
    rest = f"{grammar.up_to(tags.close)} {space} {whole}"
    if thinking == "open":
        return rest
    return grammar.one_of([f"{grammar.literal(tags.open)} {rest}", whole])


def _harmony(grammar: LarkGrammar, rules: AnswerRules) -> str:
    """Any messages to nobody, then what is asked for."""
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
