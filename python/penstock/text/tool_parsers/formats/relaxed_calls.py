"""The format of calls with unquoted keys and specially marked strings:
call:f{city:<|"|>Paris<|"|>}."""

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
from penstock.text.tool_parsers.stream_reader import Malformed, Reader, StreamRead, pass_text


@dataclass(frozen=True, slots=True)
class RelaxedCalls:
    """Calls with unquoted keys.

    - `quote`: the text before and after a string.
    - `name_prefix`: the text before the function's name.
    """

    quote: str
    name_prefix: str = "call:"

    @property
    def wrapper(self) -> tuple[str, str]:
        return ("", "")

    @property
    def call_separator(self) -> str:
        return ""

    def marks(self) -> tuple[str, ...]:
        return (self.quote,)

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        return self.name_prefix + name + relaxed(self.quote).write(arguments)

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, prefix: str) -> str:
        schema = arguments_schema(tool)
        if tool.strict:
            refuse_unenforced(tool, schema)
        members = relaxed(self.quote).members(grammar, schema, schema)
        return f'{grammar.literal(prefix + self.name_prefix + tool.name + "{")} {members} "}}"'

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        return ()

    @property
    def arguments_first(self) -> str:
        return ""

    def read(self, io: CallReader) -> StreamRead[None]:
        reader = io.reader
        yield from reader.expect(self.name_prefix)
        head, _ = yield from reader.read_until(("{",), MAX_NAME_CHARS)
        reader.unread(1)
        io.begin(head.strip())
        yield from self._value(reader, io.arguments, 0)
        io.end()

    def _value(self, reader: Reader, emit: Emit, depth: int) -> StreamRead[None]:
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

    def _object(self, reader: Reader, emit: Emit, depth: int) -> StreamRead[None]:
        delimiter = "{"
        while not (yield from _container_ends(reader, "}", delimiter)):
            mark = yield from reader.literal(self.quote, '"')
            if mark:
                key, _ = yield from reader.read_until((mark,), MAX_NAME_CHARS)
                yield from reader.spaces()
                yield from reader.expect(":")
            else:
                key, _ = yield from reader.read_until((":",), MAX_NAME_CHARS)
            yield from reader.spaces()
            emit(f'{delimiter}"{escaped(key.strip())}": ')
            yield from self._value(reader, emit, depth + 1)
            delimiter = ", "
        emit("{}" if delimiter == "{" else "}")

    def _array(self, reader: Reader, emit: Emit, depth: int) -> StreamRead[None]:
        delimiter = "["
        while not (yield from _container_ends(reader, "]", delimiter)):
            emit(delimiter)
            yield from self._value(reader, emit, depth + 1)
            delimiter = ", "
        emit("[]" if delimiter == "[" else "]")


def _container_ends(reader: Reader, close: str, delimiter: str) -> StreamRead[bool]:
    """Return whether the container ends; otherwise read the comma before the next item."""
    yield from reader.spaces()
    if (yield from reader.literal(close)):
        return True
    if delimiter == ", ":
        yield from reader.expect(",")
        yield from reader.spaces()
    return False


def _word(reader: Reader) -> StreamRead[str]:
    word = ""
    while (char := (yield from reader.peek())) and char not in ",}]":
        word += reader.advance(1)
    return word.strip()


def _scalar(word: str) -> str:
    """Return the JSON of a number, a constant, or a string that was written without quotes."""
    if not word:
        raise Malformed("expected a value")
    try:
        return as_json(word)
    except Malformed:
        return f'"{escaped(word)}"'
