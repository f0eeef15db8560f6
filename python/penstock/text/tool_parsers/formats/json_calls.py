"""Calls as JSON objects with a name and arguments: {"name": "f", "arguments": {...}}."""

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
from penstock.text.tool_parsers.stream_reader import Malformed, Reading

ARGUMENT_KEYS: Final = ("arguments", "parameters")
OTHER_KEYS: Final = ("type", "id", "index", "name", "function")


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Read are one object, several, or an array of them, whatever the model prefers.

    `arguments`: the key that the family writes; `array`: whether it writes an array; else
    `separator` stands between calls.
    """

    arguments: str = "arguments"
    array: bool = False
    separator: str = "; "

    @property
    def around(self) -> tuple[str, str]:
        return ("[", "]") if self.array else ("", "")

    @property
    def between(self) -> str:
        return ", " if self.array else self.separator

    def marks(self) -> tuple[str, ...]:
        return ()

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        return dump({"name": name, self.arguments: arguments})

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, lead: str) -> str:
        head = grammar.literal(f'{lead}{{"name": {dump(tool.name)}, "{self.arguments}": ')
        return f'{head} {grammar.schema(arguments_schema(tool), strict=tool.strict)} "}}"'

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        keys = "|".join(ARGUMENT_KEYS)
        name = re.escape(tool.name)
        others = r'("(type|id|index)"\s*:\s*[^,{}]*,\s*)*'
        head = rf'\{{\s*{others}"(name|function)"\s*:\s*"{name}"'
        return (Trigger(f'"{tool.name}"', rf'{head}\s*,\s*{others}"({keys})"\s*:'),)

    @property
    def early(self) -> str:
        return rf'\s*\{{\s*"({"|".join(ARGUMENT_KEYS)})"\s*:'

    def read(self, io: CallReader) -> Reading[None]:
        reader = io.reader
        if (yield from reader.literal("[")):
            yield from self._array(io)
            return
        while True:
            yield from _object(io)
            if (yield from reader.literal("}")):  # small models close one brace too many
                reader.hold()
            yield from reader.spaces()
            if (yield from reader.literal(",", ";")):
                yield from reader.spaces()
            if (yield from reader.peek()) != "{":
                reader.rewind()
                return

    def _array(self, io: CallReader) -> Reading[None]:
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
            raise Malformed("no call in the array")


def _object(io: CallReader) -> Reading[None]:
    """One call. Some models write its braces twice, as a template with a mistake shows them."""
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
    """The fields of one object; the call begins once its name is known and its arguments come."""

    def __init__(self, io: CallReader) -> None:
        self._io = io
        self._name: str | None = None
        self._kept: str | None = None  # arguments that came before the name
        self._nested = False
        self.started = False

    def check(self, key: str) -> None:
        """Raises Malformed where no call has such a key: at once, so that JSON that is no call is
        not held back to its end."""
        if not self.started and key not in ARGUMENT_KEYS + OTHER_KEYS:
            raise Malformed(f"no call has {key!r}")

    def field(self, key: str) -> Reading[None]:
        reader = self._io.reader
        if key == "function" and (yield from reader.peek()) == "{":
            yield from _object(self._io)
            self._nested = self.started = True
        elif key in ("name", "function") and self._name is None:
            self._name = yield from read_string(reader)
            if not self._io.knows(self._name):
                raise Malformed(f"no function {self._name!r}")
        elif key in ARGUMENT_KEYS and not self.started:
            yield from self._arguments()
        else:
            yield from skip_value(reader)

    def _arguments(self) -> Reading[None]:
        reader = self._io.reader
        first = yield from reader.peek()
        if first == "{":
            if self._name is not None:
                self._begin(self._name)
                yield from pass_container(reader, self._io.arguments)
                return
            kept: list[str] = []
            yield from pass_container(reader, kept.append)
            self._kept = "".join(kept)
        elif first == '"':  # JSON within JSON, as the wire format has it
            inner = yield from read_string(reader)
            if not is_object(inner):
                raise Malformed("arguments are no object")
            self._kept = inner
        elif (yield from read_word(reader)) == "null":
            self._kept = "{}"
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
            self._io.arguments(self._kept or "{}")
        self._io.end()
