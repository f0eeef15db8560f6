"""Calls whose arguments stand between tags, each with its key: converted to JSON as they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dialog import FunctionTool
from penstock.text.channels.calls import (
    MAX_NAME_CHARS,
    CallReader,
    arguments_schema,
    read_calls,
)
from penstock.text.channels.json_text import dump, escaped
from penstock.text.channels.lark import LarkGrammar
from penstock.text.channels.reader import Reading, pass_text
from penstock.text.channels.typed import property_of, resolved, to_json, types_of

MAX_VALUE_CHARS = 1 << 22


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """A call: `call_open` name `name_end`, its arguments, `call_close`. An argument: `key_open` key
    `key_close`, `value_open` value `value_close`.

    `wrapped`: a newline goes before and after a value and belongs to neither. `typed`: the tag of
    the key says whether the value is a string: ... string="true">. Of `name_ends` the first is what
    the family writes; one that is not in `kept_ends` is read past.
    """

    call_open: str
    name_ends: tuple[str, ...]
    call_close: str
    key_open: str
    key_close: str
    value_close: str
    value_open: str = ""
    kept_ends: tuple[str, ...] = ()
    wrapped: bool = False
    typed: bool = False

    def marks(self) -> tuple[str, ...]:
        found = (self.call_open, self.call_close, self.key_open, self.value_open, self.value_close)
        return tuple(m for m in (*found, self.key_close) if m) + self.name_ends

    @property
    def around(self) -> tuple[str, str]:
        return ("", "")

    @property
    def between(self) -> str:
        return "\n"

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        parts = [self.call_open + name + self._name_end]
        for key, value in arguments.items():
            text = value if isinstance(value, str) else dump(value)
            parts.append(self._argument_text(key, isinstance(value, str), text))
        return "\n".join([*parts, self.call_close] if self.call_close else parts)

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, lead: str) -> str:
        schema = arguments_schema(tool)
        properties = schema.get("properties")
        named = properties if isinstance(properties, dict) else {}
        required = schema.get("required", [])
        items = [
            (*self._argument_rule(grammar, key, inner, schema, tool.strict), key in required)
            for key, inner in named.items()
        ]
        lines = [("\n" + head, rest, needed) for head, rest, needed in items]
        head = grammar.literal(lead + self.call_open + tool.name + self._name_end)
        close = grammar.literal("\n" + self.call_close) if self.call_close else '""'
        return f"{head} {grammar.members(lines, '')} {close}"

    @property
    def _name_end(self) -> str:
        return "" if self.name_ends[0] == "\n" else self.name_ends[0]

    def _key_text(self, key: str, is_string: bool) -> str:
        attribute = f' string="{dump(is_string)}">' if self.typed else ""
        space = "\n" if self.value_open or self.wrapped else ""
        return self.key_open + key + self.key_close + attribute + space + self.value_open

    def _argument_text(self, key: str, is_string: bool, text: str) -> str:
        space = "\n" if self.wrapped else ""
        return self._key_text(key, is_string) + text + space + self.value_close

    def _argument_rule(
        self, grammar: LarkGrammar, key: str, inner: Any, root: Any, strict: bool
    ) -> tuple[str, str]:
        close = ("\n" if self.wrapped else "") + self.value_close
        kinds = types_of(inner, root)
        values = resolved(inner, root).get("enum")
        if kinds == {"string"} and isinstance(values, list):
            value = grammar.one_of(grammar.literal(v + close) for v in values)
        elif "string" in kinds:
            value = grammar.up_to(close)
        else:
            schema = {**inner, **{k: root[k] for k in ("$defs", "definitions") if k in root}}
            value = f"{grammar.schema(schema, strict=strict)} {grammar.literal(close)}"
        return self._key_text(key, kinds == {"string"}), value

    def trigger(self, tool: FunctionTool) -> str | None:
        return None

    def read(self, io: CallReader) -> Reading[None]:
        yield from read_calls(io, self.call_open, self._call)

    def _call(self, io: CallReader) -> Reading[None]:
        reader = io.reader
        head, end = yield from reader.upto(self.name_ends, MAX_NAME_CHARS)
        if end in self.kept_ends:
            reader.back(len(end))
        name = head.strip()
        io.begin(name)
        io.arguments("{")
        lead = ""
        schema = io.parameters(name)
        while True:
            yield from reader.spaces()
            if not (yield from reader.literal(self.key_open)):
                break
            yield from self._argument(io, schema, lead)
            lead = ", "
        if self.call_close and not (yield from reader.literal(self.call_close)):
            reader.rewind()
        io.arguments("}")
        io.end()

    def _argument(self, io: CallReader, schema: dict[str, Any], lead: str) -> Reading[None]:
        reader = io.reader
        key, _ = yield from reader.upto((self.key_close,), MAX_NAME_CHARS)
        key = key.strip()
        is_string: bool | None = None
        if self.typed:
            attribute, _ = yield from reader.upto((">",), MAX_NAME_CHARS)
            is_string = "true" in attribute
        if self.value_open:
            yield from reader.spaces()
            yield from reader.expect(self.value_open)
        types = types_of(property_of(schema, key), schema)
        if is_string is None:
            is_string = types == {"string"}
        prefix = f'{lead}"{escaped(key)}": '
        if is_string:
            yield from self._string(io, prefix)
            return
        if self.wrapped and (yield from reader.peek()) == "\n":
            reader.advance(1)
        text, _ = yield from reader.upto((self.value_close,), MAX_VALUE_CHARS)
        text = text.removesuffix("\n") if self.wrapped else text
        io.arguments(prefix + to_json(text, types))

    def _string(self, io: CallReader, prefix: str) -> Reading[None]:
        """A value that is a string, handed on while it is written."""
        reader = io.reader
        if self.wrapped and (yield from reader.peek()) == "\n":
            reader.advance(1)
        io.arguments(prefix + '"')
        marks: tuple[str, ...] = (self.value_close,)
        if self.wrapped:
            marks = ("\n" + self.value_close, self.value_close)
        yield from pass_text(reader, marks, lambda text: io.arguments(escaped(text)))
        io.arguments('"')
