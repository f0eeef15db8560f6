"""Calls as a name, a separator and the JSON of the arguments: name<sep>{...}<end>."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from penstock.dialog import FunctionTool
from penstock.grammar.lark import LarkGrammar
from penstock.text.tool_parsers.call_format import (
    MAX_NAME_CHARS,
    CallReader,
    Trigger,
    arguments_schema,
    read_calls,
)
from penstock.text.tool_parsers.json_text import dump, pass_container
from penstock.text.tool_parsers.stream_reader import Malformed, Reading


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """`begin` comes before a call (where it is empty there is one call only), `kind` may follow it;
    `separators` end the name, `fence` says that the JSON stands in a code block, `end` ends the
    call. Of each tuple the first is what the family writes today, the others are read too.

    `id_pattern`: the name is part of an id that the model makes up; its group `name` is the name;
    `id_format` makes such an id of a name and an index.
    `id_mark` may come before the separator with an id, which is not kept.
    """

    separators: tuple[str, ...]
    begin: str = ""
    kind: str = ""
    fence: bool = False
    end: str = ""
    id_pattern: str = ""
    id_format: str = ""
    id_mark: str = ""

    def marks(self) -> tuple[str, ...]:
        return tuple(m for m in (self.begin, self.kind, self.end, self.id_mark) if m) + tuple(
            self.separators
        )

    @property
    def around(self) -> tuple[str, str]:
        return ("", "")

    @property
    def between(self) -> str:
        return "\n" if self.fence else ""

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        before, after = self._json_between()
        return self._head(name, index) + before + dump(arguments) + after + self.end

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, lead: str) -> str:
        before, after = self._json_between()
        if self.id_format:
            number = grammar.terminal("/[0-9]{1,3}/")
            start, rest = (lead + self._head(tool.name, 0)).rsplit("0", 1)
            head = f"{grammar.literal(start)} {number} {grammar.literal(rest)}"
        else:
            head = grammar.literal(lead + self._head(tool.name, 0) + before)
        schema = grammar.schema(arguments_schema(tool), strict=tool.strict)
        return f"{head} {schema} {grammar.literal(after + self.end)}"

    def _head(self, name: str, index: int) -> str:
        shown = self.id_format.format(name=name, index=index) if self.id_format else name
        return self.begin + self.kind + shown + self.separators[0]

    def _json_between(self) -> tuple[str, str]:
        return ("```json\n", "\n```") if self.fence else ("", "")

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        if not self.begin.endswith("="):  # a token of its own, which no pattern matches
            return ()
        ends = "|".join(map(re.escape, self.separators))
        pattern = rf"{re.escape(self.begin)}\s*{re.escape(tool.name)}\s*({ends})"
        return (Trigger(self.begin, pattern),)

    @property
    def early(self) -> str:
        return ""

    def read(self, io: CallReader) -> Reading[None]:
        yield from read_calls(io, self.begin, self._call)

    def _call(self, io: CallReader) -> Reading[None]:
        reader = io.reader
        if self.kind:
            yield from reader.literal(self.kind)
        stops = (*self.separators, "{") + ((self.id_mark,) if self.id_mark else ())
        head, mark = yield from reader.upto(stops, MAX_NAME_CHARS)
        name, call_id = self._name(head.strip())
        if self.id_mark and mark == self.id_mark:
            _, mark = yield from reader.upto((*self.separators, "{"), MAX_NAME_CHARS)
        if not io.knows(name):
            raise Malformed(f"no function {name!r}")
        opened = mark == "{"
        if not opened:
            yield from reader.spaces()
            yield from reader.literal("```json", "```")
            yield from reader.spaces()
            opened = (yield from reader.peek()) == "{"
            if not opened:
                raise Malformed("expected arguments")
        else:
            reader.back(1)
        io.begin(name, call_id)
        yield from pass_container(reader, io.arguments)
        io.end()
        yield from reader.spaces()
        yield from reader.literal("```")
        yield from reader.spaces()
        if self.end:
            yield from reader.literal(self.end)
        reader.hold()

    def _name(self, head: str) -> tuple[str, str | None]:
        if self.id_pattern and (match := re.fullmatch(self.id_pattern, head)) is not None:
            return match["name"], head
        return head, None
