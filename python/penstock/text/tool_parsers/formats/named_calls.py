"""The format of calls as a name, a separator and JSON arguments: name<sep>{...}<end>."""

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
from penstock.text.tool_parsers.stream_reader import Malformed, StreamRead


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """Calls as a name, a separator and JSON arguments.

    - `separators`: texts that end the name. The family writes the first; the others are also read.
    - `begin`: the text before each call; "" if a call starts with its name.
    - `between`: the text between two calls without `begin`; "" if there is only one call.
    - `kind`: a text that may follow `begin`, e.g. "function".
    - `code_fence`: the JSON is in a code block.
    - `end`: the text that ends a call.
    - `id_pattern`: a regular expression for a call id that contains the name as the group `name`.
    - `id_format`: a format string that makes such an id from `name` and `index`.
    - `id_mark`: a text that may come before the separator and is followed by an id, which is
      dropped.
    """

    separators: tuple[str, ...]
    begin: str = ""
    between: str = ""
    kind: str = ""
    code_fence: bool = False
    end: str = ""
    id_pattern: str = ""
    id_format: str = ""
    id_mark: str = ""

    def marks(self) -> tuple[str, ...]:
        return tuple(m for m in (self.begin, self.kind, self.end, self.id_mark) if m) + tuple(
            self.separators
        )

    @property
    def wrapper(self) -> tuple[str, str]:
        return ("", "")

    @property
    def call_separator(self) -> str:
        return "\n" if self.code_fence else self.between

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        before, after = self._json_between()
        return self._head(name, index) + before + dump(arguments) + after + self.end

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, prefix: str) -> str:
        before, after = self._json_between()
        if self.id_format:
            number = grammar.terminal("/[0-9]{1,3}/")
            start, rest = (prefix + self._head(tool.name, 0)).rsplit("0", 1)
            head = f"{grammar.literal(start)} {number} {grammar.literal(rest)}"
        else:
            head = grammar.literal(prefix + self._head(tool.name, 0) + before)
        schema = grammar.schema(arguments_schema(tool), strict=tool.strict)
        return f"{head} {schema} {grammar.literal(after + self.end)}"

    def _head(self, name: str, index: int) -> str:
        shown = self.id_format.format(name=name, index=index) if self.id_format else name
        return self.begin + self.kind + shown + self.separators[0]

    def _json_between(self) -> tuple[str, str]:
        return ("```json\n", "\n```") if self.code_fence else ("", "")

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        if not self.begin.endswith("="):  # a control token, which no pattern matches
            return ()
        ends = "|".join(map(re.escape, self.separators))
        pattern = rf"{re.escape(self.begin)}\s*{re.escape(tool.name)}\s*({ends})"
        return (Trigger(self.begin, pattern),)

    @property
    def arguments_first(self) -> str:
        return ""

    def read(self, io: CallReader) -> StreamRead[None]:
        yield from read_calls(io, self.begin, self._call)
        while self.between:
            yield from io.reader.spaces()
            following = yield from io.reader.peek()
            if not (following.isalpha() or following == "_"):
                io.reader.rewind()
                return
            yield from self._call(io)

    def _call(self, io: CallReader) -> StreamRead[None]:
        reader = io.reader
        if self.kind:
            yield from reader.literal(self.kind)
        stops = (*self.separators, "{") + ((self.id_mark,) if self.id_mark else ())
        head, mark = yield from reader.read_until(stops, MAX_NAME_CHARS)
        name, call_id = self._name(head.strip())
        if self.id_mark and mark == self.id_mark:
            _, mark = yield from reader.read_until((*self.separators, "{"), MAX_NAME_CHARS)
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
            reader.unread(1)
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
