"""Reads calls in one of several formats, chosen by the first characters of a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dialog import FunctionTool
from penstock.grammar.lark import LarkGrammar
from penstock.text.tool_parsers.call_format import CallFormat, CallReader, Trigger
from penstock.text.tool_parsers.stream_reader import StreamRead


@dataclass(frozen=True, slots=True)
class AlternativeCalls:
    """Reads calls in several formats and writes them in one.

    - `primary`: the format that the family was trained on.
    - `others`: pairs of a call's first characters and the format that reads such a call. The
      longest match decides.
    """

    primary: CallFormat
    others: tuple[tuple[str, CallFormat], ...]

    @property
    def wrapper(self) -> tuple[str, str]:
        return self.primary.wrapper

    @property
    def call_separator(self) -> str:
        return self.primary.call_separator

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        return self.primary.write(name, arguments, index)

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, prefix: str) -> str:
        return self.primary.rule(grammar, tool, prefix)

    def marks(self) -> tuple[str, ...]:
        found = self.primary.marks()
        for _, body in self.others:
            found += body.marks()
        return found

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        primary = self.primary.triggers(tool)
        if not primary:
            return ()
        return primary + tuple(t for _, body in self.others for t in body.triggers(tool))

    @property
    def arguments_first(self) -> str:
        return self.primary.arguments_first

    def read(self, io: CallReader) -> StreamRead[None]:
        formats = dict(self.others)
        first = yield from io.reader.literal(*formats)
        io.reader.unread(len(first))
        yield from formats.get(first, self.primary).read(io)
