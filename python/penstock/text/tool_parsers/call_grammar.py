"""Builds grammars for text that may contain tool calls.

The text is unconstrained. A call is constrained from its arguments on, or from the opening of its
section on if only the section announces the call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.dialog import FunctionTool
from penstock.grammar.lark import ANY_TEXT, LarkGrammar
from penstock.grammar.types import GrammarTriggers
from penstock.text.tool_parsers.call_format import ANY_OBJECT, arguments_schema
from penstock.text.tool_parsers.syntax import AnswerSyntax, Harmony, Section, ToolSyntax

SPACE: Final = r"/[ \t\r\n]{0,8}/"
_MAX_FUNCTIONS_WITHOUT_NAME: Final = 16
"""Up to this many functions, arguments that come before the name are constrained by the schemas."""
_CHANNEL: Final = "<|channel|>"
_MESSAGE: Final = "<|message|>"
_CONSTRAIN: Final = "<|constrain|>"
_HARMONY_ENDS: Final = ("<|start|>", "<|end|>", "<|call|>")
_RECIPIENT: Final = "to=functions."


def call_grammar(
    syntax: AnswerSyntax, control: Mapping[str, int], tools: Sequence[FunctionTool]
) -> tuple[str, GrammarTriggers]:
    """Return the grammar of text that may contain tool calls, and the grammar's triggers.

    Every call contains one of the triggers before its constrained part. The reasoning fields of the
    triggers are left empty. `control` maps the text of the model's control tokens to their ids.
    """
    grammar = LarkGrammar(control)
    calls = syntax.calls
    assert calls is not None
    if isinstance(calls, Harmony):
        named = (f"to={tool.name}" for tool in tools)
        return grammar.text(_harmony(grammar, tools)), GrammarTriggers((_RECIPIENT, *named))
    triggers = tuple(trigger.mark for tool in tools for trigger in calls.format.triggers(tool))
    sections = _known_sections(grammar, calls)
    texts = triggers + tuple(_mark(grammar, section) for section in sections)
    if calls.section.open or triggers:
        return grammar.text(text_or_calls(grammar, calls, tools)), GrammarTriggers(texts)
    names = "".join(dict.fromkeys(tool.name[0] for tool in tools))
    first = calls.format.wrapper[0][:1] or names
    return grammar.text(_bare_or_text(grammar, calls, tools)), GrammarTriggers(texts, first)


def text_or_calls(grammar: LarkGrammar, syntax: ToolSyntax, tools: Sequence[FunctionTool]) -> str:
    """Return an expression for unconstrained text that may contain calls of the functions."""
    if all(syntax.format.triggers(tool) for tool in tools):
        return _triggered(grammar, syntax, tools)
    if not syntax.section.open:  # a call can start only at the first character
        first = _text_without_call(grammar, syntax, tools)
        calls = f"{call(grammar, syntax, tools, opening(syntax, syntax.section))}"
        more = call(grammar, syntax, tools, syntax.format.call_separator)
        whole = f"{calls} ({more})* {ending(grammar, syntax, syntax.section)}"
        return grammar.one_of([first, whole])
    parts = [_section(grammar, syntax, s, tools) for s in _known_sections(grammar, syntax)]
    return f"({grammar.one_of(parts)})* {grammar.rule(ANY_TEXT)}"


def call(
    grammar: LarkGrammar, syntax: ToolSyntax, tools: Sequence[FunctionTool], prefix: str
) -> str:
    """Return an expression for `prefix` and a call of any of the functions.

    `prefix` and the first characters of the call are one literal, because the lexer would decide
    too late between two literals with the same start.
    """
    return grammar.one_of(syntax.format.rule(grammar, tool, prefix) for tool in tools)


def opening(syntax: ToolSyntax, section: Section) -> str:
    """Return the text that the model writes before the first call of a section."""
    return section.open + section.space + syntax.format.wrapper[0]


def ending(grammar: LarkGrammar, syntax: ToolSyntax, section: Section) -> str:
    """Return an expression for the text that the model writes after the last call of a section."""
    return grammar.literal(syntax.format.wrapper[1] + section.space + section.close)


def _triggered(grammar: LarkGrammar, syntax: ToolSyntax, tools: Sequence[FunctionTool]) -> str:
    """Return an expression for text in which JSON arguments follow each trigger."""
    space = grammar.terminal(SPACE)
    parts = []
    for tool in tools:
        for trigger in syntax.format.triggers(tool):
            before = grammar.rule(f"{ANY_TEXT} /{trigger.pattern}/", "[lazy]")
            parts.append(f"{before} {space} {_json(grammar, tool)}")
    if syntax.format.arguments_first and syntax.section.open:
        parts.append(_arguments_before_name(grammar, syntax, tools))
    parts += grammar.marks_in_text(syntax.marks())
    return f"({grammar.one_of(parts)})* {grammar.rule(ANY_TEXT)}"


def _arguments_before_name(
    grammar: LarkGrammar, syntax: ToolSyntax, tools: Sequence[FunctionTool]
) -> str:
    """Return an expression for text up to a call whose arguments come before the name, then these
    arguments."""
    begin, space = syntax.format.arguments_first, grammar.terminal(SPACE)
    mark = syntax.section.open
    if grammar.has_control(mark):
        start = f"{grammar.up_to(mark)} {grammar.rule(f'/{begin}/', '[lazy]')}"
    else:
        start = grammar.rule(f"{ANY_TEXT} /{re.escape(mark)}{begin}/", "[lazy]")
    if len(tools) > _MAX_FUNCTIONS_WITHOUT_NAME and not any(tool.strict for tool in tools):
        return f"{start} {space} {grammar.schema(ANY_OBJECT, strict=False)}"
    named = (
        rf'{_json(grammar, tool)} /\s*,\s*"name"\s*:\s*"{re.escape(tool.name)}"/' for tool in tools
    )
    return f"{start} {space} {grammar.one_of(named)}"


def _section(
    grammar: LarkGrammar, syntax: ToolSyntax, section: Section, tools: Sequence[FunctionTool]
) -> str:
    """Return an expression for text up to the opening of a section, then the section's calls."""
    if section.in_call:
        first = f"{grammar.rule(ANY_TEXT)} {call(grammar, syntax, tools, '')}"
    else:
        first = f"{grammar.up_to(opening(syntax, section))} {call(grammar, syntax, tools, '')}"
    more = ""
    if not syntax.section_per_call:
        more = f"({call(grammar, syntax, tools, syntax.format.call_separator)})*"
    return grammar.rule(f"{first} {more} {ending(grammar, syntax, section)}")


def _known_sections(grammar: LarkGrammar, syntax: ToolSyntax) -> list[Section]:
    """Return the section that the model writes, and the other sections that start with a control
    token, which cannot be plain text."""
    others = [s for s in syntax.sections if s.open != syntax.section.open]
    apart = [s for s in others if grammar.has_control(s.open)]
    return [s for s in (syntax.section, *apart) if s.open]


def _mark(grammar: LarkGrammar, section: Section) -> str:
    """Return the text that marks the start of a section: the opening if it is a control token, else
    the opening without its last character, so that no token spans this text and text after the
    opening."""
    return section.open if grammar.has_control(section.open) else section.open[:-1] or section.open


def _bare_or_text(grammar: LarkGrammar, syntax: ToolSyntax, tools: Sequence[FunctionTool]) -> str:
    """Return an expression for calls if the answer starts with a function's name, else for text."""
    text = _text_without_call(grammar, syntax, tools)
    more = f"({call(grammar, syntax, tools, syntax.format.call_separator)})*"
    sections = [
        f"{call(grammar, syntax, tools, opening(syntax, s))} {more} {ending(grammar, syntax, s)}"
        for s in _known_sections(grammar, syntax)
    ]
    free = grammar.rule(ANY_TEXT)
    tail = f"({free} {grammar.one_of(sections)})* {free}" if sections else free
    section = syntax.section
    bare = f"{call(grammar, syntax, tools, opening(syntax, section))} {more}"
    text_first = f"{text} ({grammar.one_of(sections)} {tail})?" if sections else text
    return grammar.one_of([f"{bare} {ending(grammar, syntax, section)} {tail}", text_first])


def _text_without_call(
    grammar: LarkGrammar, syntax: ToolSyntax, tools: Sequence[FunctionTool]
) -> str:
    """Return an expression for text that does not start with a call of one of the functions."""
    names = "|".join(re.escape(tool.name) for tool in tools)
    before = re.escape(syntax.format.wrapper[0])
    start = rf"/\s*{before}\s*({names}){syntax.bare_end}(.|\n)*/"
    return grammar.terminal(f"{ANY_TEXT} & ~({start})")


def _harmony(grammar: LarkGrammar, tools: Sequence[FunctionTool]) -> str:
    """Return an expression for Harmony messages to any recipient. A message whose header names a
    function contains JSON arguments of that function."""
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
    """Return a regular expression for a Harmony header that names a function, up to the next
    control token."""
    return rf"(.|\n)*to=(functions\.)?{re.escape(name)}(\s[^<]*)?"


def _json(grammar: LarkGrammar, tool: FunctionTool) -> str:
    return grammar.schema(arguments_schema(tool), strict=tool.strict)
