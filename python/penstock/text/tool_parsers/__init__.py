"""Tool and reasoning parsers: what of a model's words is text, what is reasoning, what calls a
function.

`AnswerParser` tells them apart while they are written; `tool_syntaxes` describes what the families
of
models write, `detect` finds out which one a model belongs to.
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
