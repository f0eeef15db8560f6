"""Grammars for text in which calls may stand: the text is free, a call is bound from its arguments
on or, if only its section tells that it begins, from the section on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.dialog import FunctionTool
from penstock.grammar.lark import ANY_TEXT, LarkGrammar
from penstock.text.tool_parsers.call_format import ANY_OBJECT, arguments_schema
from penstock.text.tool_parsers.syntax import AnswerSyntax, Harmony, Section, ToolSyntax

SPACE: Final = r"/[ \t\r\n]{0,8}/"
_MOST_TRIED: Final = 16
"""Arguments that come before the name are bound to the schema of one of so many functions."""
_CHANNEL: Final = "<|channel|>"
_MESSAGE: Final = "<|message|>"
_CONSTRAIN: Final = "<|constrain|>"
_HARMONY_ENDS: Final = ("<|start|>", "<|end|>", "<|call|>")
_RECIPIENT: Final = "to=functions."


@dataclass(frozen=True, slots=True)
class CallTriggers:
    """Where a grammar of `call_grammar` starts to bind: `texts`, one of which stands in every call
    before what is bound of it; `first`: characters that may begin a call with nothing around it."""

    texts: tuple[str, ...]
    first: str = ""


def call_grammar(
    channels: AnswerSyntax, control: Mapping[str, int], tools: Sequence[FunctionTool]
) -> tuple[str, CallTriggers]:
    """The rules of text in which calls may stand, and where they start to bind. `control`: text ->
    id of the model's control tokens."""
    grammar = LarkGrammar(control)
    syntax = channels.calls
    assert syntax is not None
    if isinstance(syntax, Harmony):
        named = (f"to={tool.name}" for tool in tools)
        return grammar.text(_harmony(grammar, tools)), CallTriggers((_RECIPIENT, *named))
    triggers = tuple(trigger.mark for tool in tools for trigger in syntax.body.triggers(tool))
    sections = _known_sections(grammar, syntax)
    texts = triggers + tuple(_mark(grammar, section) for section in sections)
    if syntax.section.open or triggers:
        return grammar.text(text_or_calls(grammar, syntax, tools)), CallTriggers(texts)
    first = syntax.body.around[0][:1]
    return grammar.text(_bare_or_text(grammar, syntax, tools)), CallTriggers(texts, first)


def text_or_calls(grammar: LarkGrammar, syntax: ToolSyntax, tools: Sequence[FunctionTool]) -> str:
    """Free text; from where a call begins, calls as they must be."""
    if all(syntax.body.triggers(tool) for tool in tools):
        return _triggered(grammar, syntax, tools)
    if not syntax.section.open:  # a call begins with the first character, or there is none
        first = grammar.rule(r"/[^\[](.|\n)*/")
        calls = f"{call(grammar, syntax, tools, opening(syntax, syntax.section))}"
        more = call(grammar, syntax, tools, syntax.body.between)
        whole = f"{calls} ({more})* {ending(grammar, syntax, syntax.section)}"
        return grammar.one_of([f"{first}?", whole])
    parts = [_section(grammar, syntax, s, tools) for s in _known_sections(grammar, syntax)]
    return f"({grammar.one_of(parts)})* {grammar.rule(ANY_TEXT)}"


def call(grammar: LarkGrammar, syntax: ToolSyntax, tools: Sequence[FunctionTool], lead: str) -> str:
    """A call of any function; `lead` and its first characters are one literal, as literals that
    begin alike would be told apart too late."""
    return grammar.one_of(syntax.body.rule(grammar, tool, lead) for tool in tools)


def opening(syntax: ToolSyntax, section: Section) -> str:
    """The text that the model writes before the first call of a section."""
    return section.open + section.space + syntax.body.around[0]


def ending(grammar: LarkGrammar, syntax: ToolSyntax, section: Section) -> str:
    """The text that the model writes after the last call of a section."""
    return grammar.literal(syntax.body.around[1] + section.space + section.close)


def _triggered(grammar: LarkGrammar, syntax: ToolSyntax, tools: Sequence[FunctionTool]) -> str:
    """Text, and arguments wherever what comes before them stands."""
    space = grammar.terminal(SPACE)
    parts = []
    for tool in tools:
        for trigger in syntax.body.triggers(tool):
            before = grammar.rule(f"{ANY_TEXT} /{trigger.pattern}/", "[lazy]")
            parts.append(f"{before} {space} {_json(grammar, tool)}")
    if syntax.body.early and syntax.section.open:
        parts.append(_early(grammar, syntax, tools))
    parts += grammar.marks_in_text(syntax.marks())
    return f"({grammar.one_of(parts)})* {grammar.rule(ANY_TEXT)}"


def _early(grammar: LarkGrammar, syntax: ToolSyntax, tools: Sequence[FunctionTool]) -> str:
    """Arguments that come before the name of their function."""
    begin, space = syntax.body.early, grammar.terminal(SPACE)
    mark = syntax.section.open
    if grammar.has_control(mark):
        start = f"{grammar.up_to(mark)} {grammar.rule(f'/{begin}/', '[lazy]')}"
    else:
        start = grammar.rule(f"{ANY_TEXT} /{re.escape(mark)}{begin}/", "[lazy]")
    if len(tools) > _MOST_TRIED and not any(tool.strict for tool in tools):
        return f"{start} {space} {grammar.schema(ANY_OBJECT, strict=False)}"
    named = (
        rf'{_json(grammar, tool)} /\s*,\s*"name"\s*:\s*"{re.escape(tool.name)}"/' for tool in tools
    )
    return f"{start} {space} {grammar.one_of(named)}"


def _section(
    grammar: LarkGrammar, syntax: ToolSyntax, section: Section, tools: Sequence[FunctionTool]
) -> str:
    """Text up to the opening of a section, and its calls."""
    if section.inside:
        first = f"{grammar.rule(ANY_TEXT)} {call(grammar, syntax, tools, '')}"
    else:
        first = f"{grammar.up_to(opening(syntax, section))} {call(grammar, syntax, tools, '')}"
    between = "" if syntax.one_each else call(grammar, syntax, tools, syntax.body.between)
    more = f"({between})*" if between else ""
    return grammar.rule(f"{first} {more} {ending(grammar, syntax, section)}")


def _known_sections(grammar: LarkGrammar, syntax: ToolSyntax) -> list[Section]:
    """The usual section, and those that begin with a control token, which can be nothing else."""
    others = [s for s in syntax.sections if s.open != syntax.section.open]
    apart = [s for s in others if grammar.has_control(s.open)]
    return [s for s in (syntax.section, *apart) if s.open]


def _mark(grammar: LarkGrammar, section: Section) -> str:
    """A text that tells that a section begins, before a token can hold more than its opening."""
    return section.open if grammar.has_control(section.open) else section.open[:-1] or section.open


def _bare_or_text(grammar: LarkGrammar, syntax: ToolSyntax, tools: Sequence[FunctionTool]) -> str:
    """Calls if the answer begins with the name of a function, else text."""
    names = "|".join(re.escape(tool.name) for tool in tools)
    before = re.escape(syntax.body.around[0])
    text = grammar.terminal(rf"{ANY_TEXT} & ~(/\s*{before}\s*({names})\((.|\n)*/)")
    between = f"({call(grammar, syntax, tools, syntax.body.between)})*"
    sections = [
        f"{call(grammar, syntax, tools, opening(syntax, s))} {between} {ending(grammar, syntax, s)}"
        for s in _known_sections(grammar, syntax)
    ]
    free = grammar.rule(ANY_TEXT)
    tail = f"({free} {grammar.one_of(sections)})* {free}" if sections else free
    usual = syntax.section
    bare = f"{call(grammar, syntax, tools, opening(syntax, usual))} {between}"
    begun = f"{text} ({grammar.one_of(sections)} {tail})?" if sections else text
    return grammar.one_of([f"{bare} {ending(grammar, syntax, usual)} {tail}", begun])


def _harmony(grammar: LarkGrammar, tools: Sequence[FunctionTool]) -> str:
    """Messages to anybody; one whose header names a function holds its arguments."""
    named = {tool.name: _naming(tool.name) for tool in tools}
    free = grammar.terminal(
        f"{ANY_TEXT} & ~({' | '.join(f'/{pattern}/' for pattern in named.values())})"
    )
    message = grammar.literal(_MESSAGE)
    within = [grammar.literal(mark) for mark in (_CHANNEL, _CONSTRAIN)]
    header = f"({grammar.one_of(within)} {free})*"
    ends = [grammar.literal(mark) for mark in _HARMONY_ENDS]
    parts = [f"{free} {grammar.one_of([message, *within, *ends])}"]
    for tool in tools:
        name = f"{grammar.terminal(f'/{named[tool.name]}/')} {header}"
        parts.append(f"{name} {message} {grammar.terminal(SPACE)} {_json(grammar, tool)}")
        parts.append(f"{name} {grammar.one_of(ends)}")
    return f"({grammar.one_of(parts)})* {free}"


def _naming(name: str) -> str:
    """A regular expression for a header up to a control token, if it names a function."""
    return rf"(.|\n)*to=(functions\.)?{re.escape(name)}(\s[^<]*)?"


def _json(grammar: LarkGrammar, tool: FunctionTool) -> str:
    return grammar.schema(arguments_schema(tool), strict=tool.strict)
