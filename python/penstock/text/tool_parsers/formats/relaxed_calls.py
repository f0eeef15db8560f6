"""Calls with unquoted keys and strings between marks of their own: call:f{city:<|"|>Paris<|"|>}."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dialog import FunctionTool
from penstock.grammar.lark import LarkGrammar
from penstock.grammar.literals import refuse_unenforced, relaxed
from penstock.text.tool_parsers.call_format import (
    MAX_NAME_CHARS,
    CallReader,
    Trigger,
    arguments_schema,
)
from penstock.text.tool_parsers.formats.python_values import MAX_DEPTH, Emit, as_json
from penstock.text.tool_parsers.json_text import escaped
from penstock.text.tool_parsers.stream_reader import Malformed, Reader, Reading, pass_text


@dataclass(frozen=True, slots=True)
class RelaxedCalls:
    """`quote` stands before and after a string. `lead` comes before the name."""

    quote: str
    lead: str = "call:"

    @property
    def around(self) -> tuple[str, str]:
        return ("", "")

    @property
    def between(self) -> str:
        return ""

    def marks(self) -> tuple[str, ...]:
        return (self.quote,)

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        return self.lead + name + relaxed(self.quote).write(arguments)

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, lead: str) -> str:
        schema = arguments_schema(tool)
        if tool.strict:
            refuse_unenforced(tool, schema)
        members = relaxed(self.quote).members(grammar, schema, schema)
        return f'{grammar.literal(lead + self.lead + tool.name + "{")} {members} "}}"'

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        return ()

    @property
    def early(self) -> str:
        return ""

    def read(self, io: CallReader) -> Reading[None]:
        reader = io.reader
        yield from reader.expect(self.lead)
        head, _ = yield from reader.upto(("{",), MAX_NAME_CHARS)
        reader.back(1)
        io.begin(head.strip())
        yield from self._value(reader, io.arguments, 0)
        io.end()

    def _value(self, reader: Reader, emit: Emit, depth: int) -> Reading[None]:
        if depth > MAX_DEPTH:
            raise Malformed("nested too deeply")
        mark = yield from reader.literal(self.quote, '"', "{", "[")
        if mark == "{":
            yield from self._object(reader, emit, depth)
        elif mark == "[":
            yield from self._array(reader, emit, depth)
        elif mark:
            emit('"')
            yield from pass_text(reader, (mark,), lambda text: emit(escaped(text)))
            emit('"')
        else:
            emit(_scalar((yield from _word(reader))))

    def _object(self, reader: Reader, emit: Emit, depth: int) -> Reading[None]:
        lead = "{"
        while not (yield from _closed(reader, "}", lead)):
            mark = yield from reader.literal(self.quote, '"')
            if mark:
                key, _ = yield from reader.upto((mark,), MAX_NAME_CHARS)
                yield from reader.spaces()
                yield from reader.expect(":")
            else:
                key, _ = yield from reader.upto((":",), MAX_NAME_CHARS)
            yield from reader.spaces()
            emit(f'{lead}"{escaped(key.strip())}": ')
            yield from self._value(reader, emit, depth + 1)
            lead = ", "
        emit("{}" if lead == "{" else "}")

    def _array(self, reader: Reader, emit: Emit, depth: int) -> Reading[None]:
        lead = "["
        while not (yield from _closed(reader, "]", lead)):
            emit(lead)
            yield from self._value(reader, emit, depth + 1)
            lead = ", "
        emit("[]" if lead == "[" else "]")


def _closed(reader: Reader, close: str, lead: str) -> Reading[bool]:
    """Whether the end comes; else past the comma before the next item."""
    yield from reader.spaces()
    if (yield from reader.literal(close)):
        return True
    if lead == ", ":
        yield from reader.expect(",")
        yield from reader.spaces()
    return False


def _word(reader: Reader) -> Reading[str]:
    word = ""
    while (char := (yield from reader.peek())) and char not in ",}]":
        word += reader.advance(1)
    return word.strip()


def _scalar(word: str) -> str:
    """A number, a constant, or a string that was written without its marks."""
    if not word:
        raise Malformed("expected a value")
    try:
        return as_json(word)
    except Malformed:
        return f'"{escaped(word)}"'
