"""The format of calls as JSON objects: {"name": "f", "arguments": {...}}."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from penstock.dialog import FunctionTool
from penstock.grammar.lark import LarkGrammar
from penstock.text.tool_parsers.call_format import CallReader, Trigger, arguments_schema
from penstock.text.tool_parsers.json_text import (
    dump,
    is_object,
    pass_container,
    read_string,
    read_word,
    skip_value,
)
from penstock.text.tool_parsers.stream_reader import Malformed, StreamRead

ARGUMENT_KEYS: Final = ("arguments", "parameters")
NAME_KEYS: Final = ("name", "function", "tool_name")
OTHER_KEYS: Final = ("type", "id", "index", "tool_call_id")


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Calls as JSON objects. Reads one object, several objects, or an array of objects.

    - `arguments`, `name`: the keys of the arguments and of the name that the family writes.
    - `number`: the key of the call's number, a string that precedes the name; "" for none.
    - `array`: the family writes an array of calls.
    - `indent`: the white space before each call of an array that has one call per line.
    - `separator`: the text between two calls if they are not an array.
    """

    arguments: str = "arguments"
    name: str = "name"
    number: str = ""
    array: bool = False
    indent: str = ""
    separator: str = "; "

    @property
    def wrapper(self) -> tuple[str, str]:
        if not self.array:
            return ("", "")
        return ("[" + self.indent, "\n]" if self.indent else "]")

    @property
    def call_separator(self) -> str:
        if not self.array:
            return self.separator
        return "," + (self.indent or " ")

    def marks(self) -> tuple[str, ...]:
        return ()

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        number = {self.number: str(index)} if self.number else {}
        return dump(number | {self.name: name, self.arguments: arguments})

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, prefix: str) -> str:
        rest = f'"{self.name}": {dump(tool.name)}, "{self.arguments}": '
        if self.number:
            digits = grammar.terminal("/[0-9]{1,3}/")
            start = grammar.literal(f'{prefix}{{"{self.number}": "')
            head = f"{start} {digits} {grammar.literal(chr(34) + ', ' + rest)}"
        else:
            head = grammar.literal(f"{prefix}{{{rest}")
        return f'{head} {grammar.schema(arguments_schema(tool), strict=tool.strict)} "}}"'

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        keys = "|".join(ARGUMENT_KEYS)
        name = re.escape(tool.name)
        others = rf'("({"|".join(OTHER_KEYS)})"\s*:\s*[^,{{}}]*,\s*)*'
        head = rf'\{{\s*{others}"({"|".join(NAME_KEYS)})"\s*:\s*"{name}"'
        return (Trigger(f'"{tool.name}"', rf'{head}\s*,\s*{others}"({keys})"\s*:'),)

    @property
    def arguments_first(self) -> str:
        return rf'\s*\{{\s*"({"|".join(ARGUMENT_KEYS)})"\s*:'

    def read(self, io: CallReader) -> StreamRead[None]:
        reader = io.reader
        if (yield from reader.literal("[")):
            yield from self._array(io)
            return
        while True:
            yield from _object(io)
            if (yield from reader.literal("}")):  # small models write an extra brace
                reader.hold()
            yield from reader.spaces()
            if (yield from reader.literal(",", ";")):
                yield from reader.spaces()
            if (yield from reader.peek()) != "{":
                reader.rewind()
                return

    def _array(self, io: CallReader) -> StreamRead[None]:
        reader = io.reader
        first = True
        while True:
            yield from reader.spaces()
            if (yield from reader.literal("]")):
                break
            if not first:
                yield from reader.expect(",")
                yield from reader.spaces()
            yield from _object(io)
            first = False
        if first:
            raise Malformed("empty array of calls")


def _object(io: CallReader) -> StreamRead[None]:
    """Read one call. The braces may be doubled: a faulty template teaches some models to do so."""
    reader = io.reader
    yield from reader.expect("{")
    yield from reader.spaces()
    doubled = yield from reader.literal("{")
    call = _Call(io)
    while True:
        yield from reader.spaces()
        key = yield from read_string(reader)
        call.check(key)
        yield from reader.spaces()
        yield from reader.expect(":")
        yield from reader.spaces()
        yield from call.field(key)
        yield from reader.spaces()
        if not (yield from reader.literal(",")):
            break
    ended = yield from reader.literal("}")
    if not ended and not call.started:
        raise Malformed("expected a brace")
    call.finish()
    if doubled:
        yield from reader.spaces()
        yield from reader.literal("}")
    reader.hold()


class _Call:
    """Reads the fields of one JSON object. The call starts once its name is known and its arguments
    follow."""

    def __init__(self, io: CallReader) -> None:
        self._io = io
        self._name: str | None = None
        self._early_arguments: str | None = None  # arguments before the name
        self._nested = False
        self.started = False

    def check(self, key: str) -> None:
        """Raise Malformed for a key that no call has, so that JSON that is not a call is shown at
        once instead of being held back to its end."""
        if not self.started and key not in ARGUMENT_KEYS + NAME_KEYS + OTHER_KEYS:
            raise Malformed(f"unknown key {key!r} in a call")

    def field(self, key: str) -> StreamRead[None]:
        reader = self._io.reader
        if key == "function" and (yield from reader.peek()) == "{":
            yield from _object(self._io)
            self._nested = self.started = True
        elif key in NAME_KEYS and self._name is None:
            self._name = yield from read_string(reader)
            if not self._io.knows(self._name):
                raise Malformed(f"no function {self._name!r}")
        elif key in ARGUMENT_KEYS and not self.started:
            yield from self._arguments()
        else:
            yield from skip_value(reader)

    def _arguments(self) -> StreamRead[None]:
        reader = self._io.reader
        first = yield from reader.peek()
        if first == "{":
            if self._name is not None:
                self._begin(self._name)
                yield from pass_container(reader, self._io.arguments)
                return
            parts: list[str] = []
            yield from pass_container(reader, parts.append)
            self._early_arguments = "".join(parts)
        elif first == '"':  # JSON inside a JSON string, as in OpenAI's API
            inner = yield from read_string(reader)
            if not is_object(inner):
                raise Malformed("arguments are no object")
            self._early_arguments = inner
        elif (yield from read_word(reader)) == "null":
            self._early_arguments = "{}"
        else:
            raise Malformed("arguments are no object")

    def _begin(self, name: str) -> None:
        self._io.begin(name)
        self.started = True

    def finish(self) -> None:
        if self._nested:
            return
        if not self.started:
            if self._name is None:
                raise Malformed("a call without a name")
            self._begin(self._name)
            self._io.arguments(self._early_arguments or "{}")
        self._io.end()
