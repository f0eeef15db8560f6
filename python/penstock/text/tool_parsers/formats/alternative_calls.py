"""One of several forms, by how a call begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dialog import FunctionTool
from penstock.grammar.lark import LarkGrammar
from penstock.text.tool_parsers.call_format import CallFormat, CallReader, Trigger
from penstock.text.tool_parsers.stream_reader import Reading


@dataclass(frozen=True, slots=True)
class AlternativeCalls:
    """`usual` is what the family was trained to write; `others`: by the first character."""

    usual: CallFormat
    others: tuple[tuple[str, CallFormat], ...]

    @property
    def around(self) -> tuple[str, str]:
        return self.usual.around

    @property
    def between(self) -> str:
        return self.usual.between

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        return self.usual.write(name, arguments, index)

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, lead: str) -> str:
        return self.usual.rule(grammar, tool, lead)

    def marks(self) -> tuple[str, ...]:
        found = self.usual.marks()
        for _, body in self.others:
            found += body.marks()
        return found

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        usual = self.usual.triggers(tool)
        if not usual:
            return ()
        return usual + tuple(t for _, body in self.others for t in body.triggers(tool))

    @property
    def early(self) -> str:
        return self.usual.early

    def read(self, io: CallReader) -> Reading[None]:
        first = yield from io.reader.peek()
        yield from dict(self.others).get(first, self.usual).read(io)
