"""Tool and reasoning parsers: split a model's output into text, reasoning and tool calls.

`AnswerParser` splits a text while the model writes it. `tool_syntaxes` describes the syntax of each
model family; `detect` finds the syntax of a model.
"""

from penstock.text.tool_parsers.answer_parser import AnswerParser
from penstock.text.tool_parsers.detect import detect_answer_syntax
from penstock.text.tool_parsers.parser_output import (
    CallEnd,
    CallStart,
    ParsedArguments,
    ParsedReasoning,
    ParsedText,
    ParserOutput,
)
from penstock.text.tool_parsers.syntax import AnswerSyntax, Harmony, ReasoningSyntax, ToolSyntax
from penstock.text.tool_parsers.tool_syntaxes import TOOL_SYNTAXES

__all__ = [
    "TOOL_SYNTAXES",
    "AnswerParser",
    "AnswerSyntax",
    "CallEnd",
    "CallStart",
    "Harmony",
    "ParsedArguments",
    "ParsedReasoning",
    "ParsedText",
    "ParserOutput",
    "ReasoningSyntax",
    "ToolSyntax",
    "detect_answer_syntax",
]
