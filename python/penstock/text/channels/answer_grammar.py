"""Grammars for whole answers: free reasoning, then calls or text as the client asks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.dialog import FunctionTool
from penstock.text.channels.calls import arguments_schema
from penstock.text.channels.lark import ANY_TEXT, LarkGrammar
from penstock.text.channels.syntax import (
    Channels,
    Harmony,
    ReasoningSyntax,
    Section,
    ToolSyntax,
)

ANSWER: Final = "answer"
"""Name of the grammar that is the client's own, as the first one refers to it."""
SPACE: Final = r"/[ \t\r\n]{0,8}/"
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


def answer_grammar(channels: Channels, control: Mapping[str, int], rules: AnswerRules) -> str:
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
    return _text_or_calls(grammar, syntax, rules)


def _calls(grammar: LarkGrammar, syntax: ToolSyntax, rules: AnswerRules) -> str:
    """Calls and nothing else, in the first form that the model begins."""
    return grammar.one_of(_calls_in(grammar, syntax, s, rules) for s in syntax.forms)


def _calls_in(
    grammar: LarkGrammar, syntax: ToolSyntax, section: Section, rules: AnswerRules
) -> str:
    opening = _opening(syntax, section)
    first, end = _call(grammar, syntax, rules, opening), _ending(grammar, syntax, section)
    if rules.calls == "one":
        return f"{first} {end}"
    if syntax.one_each:
        again = _call(grammar, syntax, rules, syntax.gap + opening)
        return f"{first} {end} ({again} {end})*"
    return f"{first} ({_call(grammar, syntax, rules, syntax.body.between)})* {end}"


def _call(grammar: LarkGrammar, syntax: ToolSyntax, rules: AnswerRules, lead: str) -> str:
    """A call of any function; `lead` and its first characters are one literal, as literals that
    begin alike would be told apart too late."""
    return grammar.one_of(syntax.body.rule(grammar, tool, lead) for tool in rules.tools)


def _opening(syntax: ToolSyntax, section: Section) -> str:
    """What the model writes before the first call of a section."""
    return section.open + section.space + syntax.body.around[0]


def _ending(grammar: LarkGrammar, syntax: ToolSyntax, section: Section) -> str:
    return grammar.literal(syntax.body.around[1] + section.space + section.close)


def _text_or_calls(grammar: LarkGrammar, syntax: ToolSyntax, rules: AnswerRules) -> str:
    """Free text; from where a call begins, calls as they must be."""
    triggers = [syntax.body.trigger(tool) for tool in rules.tools]
    if all(triggers):
        space = grammar.terminal(SPACE)
        parts = [
            f"{grammar.rule(f'{ANY_TEXT} /{trigger}/', '[lazy]')}"
            f" {space} {grammar.schema(arguments_schema(tool), strict=tool.strict)}"
            for trigger, tool in zip(triggers, rules.tools, strict=True)
        ]
        parts += grammar.marks_in_text(syntax.marks())
        return f"({grammar.one_of(parts)})* {grammar.rule(ANY_TEXT)}"
    if not syntax.section.open:  # a call begins with the first character, or there is none
        first = grammar.rule(r"/[^\[](.|\n)*/")
        return grammar.one_of([f"{first}?", _calls(grammar, syntax, rules)])
    section = syntax.section
    first = f"{grammar.up_to(_opening(syntax, section))} {_call(grammar, syntax, rules, '')}"
    between = "" if syntax.one_each else _call(grammar, syntax, rules, syntax.body.between)
    more = f"({between})*" if between else ""
    part = grammar.rule(f"{first} {more} {_ending(grammar, syntax, section)}")
    return f"{part}* {grammar.rule(ANY_TEXT)}"


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
