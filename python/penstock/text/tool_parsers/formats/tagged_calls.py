"""The format of calls with one tag per argument, converted to JSON while the model writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from penstock.dialog import FunctionTool
from penstock.grammar.json_schema.argument_schema import (
    Unenforceable,
    count_of,
    member_of,
    members_of,
    options_of,
    others_of,
    required_of,
    standalone,
    unknown_keyword,
    values_of,
)
from penstock.grammar.json_schema.value_types import types_of
from penstock.grammar.lark import LarkGrammar
from penstock.text.tool_parsers.call_format import (
    MAX_NAME_CHARS,
    CallReader,
    Trigger,
    arguments_schema,
    read_calls,
)
from penstock.text.tool_parsers.json_text import dump, escaped
from penstock.text.tool_parsers.stream_reader import Malformed, StreamRead, pass_text
from penstock.text.tool_parsers.typed_values import to_json

MAX_VALUE_CHARS = 1 << 22
_OBJECT_KEYWORDS: Final = frozenset({"type", "properties", "required", "additionalProperties"})
_LISTED_KEYWORDS: Final = frozenset({"type", "enum", "const"})
_TEXT_KEYWORDS: Final = frozenset({"type", "minLength", "maxLength"})


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """Calls with one tag per argument.

    A call is `call_open`, the name, one of `name_ends`, the arguments, `call_close`. An argument is
    `key_open`, the key, `key_close`, `value_open`, the value, `value_close`.

    - `name_ends`: texts that end the name. The family writes the first; the others are also read.
    - `kept_ends`: texts that end the name but belong to the text after it.
    - `value_lines`: a newline before and after each value is not part of the value.
    - `string_attribute`: the tag of the key has an attribute that tells whether the value is a
      string: ... string="true">.
    """

    call_open: str
    name_ends: tuple[str, ...]
    call_close: str
    key_open: str
    key_close: str
    value_close: str
    value_open: str = ""
    kept_ends: tuple[str, ...] = ()
    value_lines: bool = False
    string_attribute: bool = False

    def marks(self) -> tuple[str, ...]:
        found = (self.call_open, self.call_close, self.key_open, self.value_open, self.value_close)
        return tuple(m for m in (*found, self.key_close) if m) + self.name_ends

    @property
    def wrapper(self) -> tuple[str, str]:
        return ("", "")

    @property
    def call_separator(self) -> str:
        return "\n"

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        parts = [self.call_open + name + self._name_end]
        for key, value in arguments.items():
            text = value if isinstance(value, str) else dump(value)
            parts.append(self._argument_text(key, isinstance(value, str), text))
        return "\n".join([*parts, self.call_close] if self.call_close else parts)

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, prefix: str) -> str:
        schema = arguments_schema(tool)
        if tool.strict:
            _refuse_unenforced(tool, schema)
        forms = [self._members(grammar, form, schema, tool) for form in options_of(schema, schema)]
        head = grammar.literal(prefix + self.call_open + tool.name + self._name_end)
        close = grammar.literal("\n" + self.call_close) if self.call_close else '""'
        return f"{head} {grammar.one_of(forms)} {close}"

    def _members(
        self, grammar: LarkGrammar, form: dict[str, Any], root: dict[str, Any], tool: FunctionTool
    ) -> str:
        """Return an expression for the arguments that one alternative of a schema allows, in the
        order of its properties."""
        members, others = members_of(form), others_of(form)
        if not members and "properties" not in form and others is not None:
            return self._any_members(grammar, others, root, tool)
        required = required_of(form)
        items = []
        for key, inner in members.items():
            kinds = types_of(member_of(root, key), root)  # the types that `_argument` computes
            value = self._value(grammar, inner, root, kinds, tool)
            is_string = kinds == {"string"}
            items.append(("\n" + self._key_text(key, is_string), value, key in required))
        return grammar.members(items, "")

    def _any_members(
        self, grammar: LarkGrammar, inner: Any, root: dict[str, Any], tool: FunctionTool
    ) -> str:
        kinds = types_of(inner, root)
        start = grammar.literal("\n" + self.key_open)
        key_end = self._key_text("", kinds == {"string"})
        name = grammar.terminal(r"/[A-Za-z_][A-Za-z0-9_.-]{0,63}/")
        end = grammar.literal(key_end.removeprefix(self.key_open))
        value = self._value(grammar, inner, root, kinds, tool)
        return grammar.repeated(f"{start} {name} {end} {value}", "")

    @property
    def _name_end(self) -> str:
        return "" if self.name_ends[0] == "\n" else self.name_ends[0]

    def _key_text(self, key: str, is_string: bool) -> str:
        attribute = f' string="{dump(is_string)}">' if self.string_attribute else ""
        space = "\n" if self.value_open or self.value_lines else ""
        return self.key_open + key + self.key_close + attribute + space + self.value_open

    def _argument_text(self, key: str, is_string: bool, text: str) -> str:
        space = "\n" if self.value_lines else ""
        return self._key_text(key, is_string) + text + space + self.value_close

    def _value(
        self,
        grammar: LarkGrammar,
        inner: Any,
        root: dict[str, Any],
        kinds: frozenset[str],
        tool: FunctionTool,
    ) -> str:
        """Return a grammar expression for a value and its closing tag."""
        close = ("\n" if self.value_lines else "") + self.value_close
        options = options_of(inner, root)
        free = [o for o in options if "string" in types_of(o, root) and not values_of(o, root)]
        if len(free) == 1:  # unconstrained text includes the other alternatives
            least, most = count_of(free[0], "minLength") or 0, count_of(free[0], "maxLength")
            if least or most is not None:
                return grammar.counted_up_to(close, least, most)
        if free:
            return grammar.up_to(close)
        found = []
        for option in options:
            values = values_of(option, root)
            if values is not None:
                found += [grammar.literal(_value_text(value, kinds) + close) for value in values]
                continue
            json = grammar.schema(standalone(option, root), strict=tool.strict)
            found.append(f"{json} {grammar.literal(close)}")
        return grammar.one_of(found)

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        return ()

    @property
    def arguments_first(self) -> str:
        return ""

    def read(self, io: CallReader) -> StreamRead[None]:
        yield from read_calls(io, self.call_open, self._call)

    def _call(self, io: CallReader) -> StreamRead[None]:
        reader = io.reader
        head, end = yield from reader.read_until(self.name_ends, MAX_NAME_CHARS)
        if end in self.kept_ends:
            reader.unread(len(end))
        name = head.strip()
        io.begin(name)
        io.arguments("{")
        delimiter = ""
        schema = io.parameters(name)
        while True:
            yield from reader.spaces()
            if not (yield from reader.literal(self.key_open)):
                break
            yield from self._argument(io, schema, delimiter)
            delimiter = ", "
        if not (yield from reader.peek()):
            raise Malformed("the text ended")
        if self.call_close and not (yield from reader.literal(self.call_close)):
            reader.rewind()
        io.arguments("}")
        io.end()

    def _argument(self, io: CallReader, schema: dict[str, Any], delimiter: str) -> StreamRead[None]:
        reader = io.reader
        key, _ = yield from reader.read_until((self.key_close,), MAX_NAME_CHARS)
        key = key.strip()
        is_string: bool | None = None
        if self.string_attribute:
            attribute, _ = yield from reader.read_until((">",), MAX_NAME_CHARS)
            is_string = "true" in attribute
        if self.value_open:
            yield from reader.spaces()
            yield from reader.expect(self.value_open)
        types = types_of(member_of(schema, key), schema)
        if is_string is None:
            is_string = types == {"string"}
        prefix = f'{delimiter}"{escaped(key)}": '
        if is_string:
            yield from self._string(io, prefix)
            return
        if self.value_lines and (yield from reader.peek()) == "\n":
            reader.advance(1)
        text, _ = yield from reader.read_until((self.value_close,), MAX_VALUE_CHARS)
        text = text.removesuffix("\n") if self.value_lines else text
        io.arguments(prefix + to_json(text, types))

    def _string(self, io: CallReader, prefix: str) -> StreamRead[None]:
        """Read a string value and emit it as it arrives."""
        reader = io.reader
        if self.value_lines and (yield from reader.peek()) == "\n":
            reader.advance(1)
        io.arguments(prefix + '"')
        marks: tuple[str, ...] = (self.value_close,)
        if self.value_lines:
            marks = ("\n" + self.value_close, self.value_close)
        yield from pass_text(reader, marks, lambda text: io.arguments(escaped(text)))
        io.arguments('"')


def _value_text(value: Any, kinds: frozenset[str]) -> str:
    """Return the text of a value between tags: JSON, or a string without quotes unless the parser
    would read that text as another value."""
    text = value if isinstance(value, str) else dump(value)
    return text if kinds == {"string"} or to_json(text, kinds) == dump(value) else dump(value)


def _refuse_unenforced(tool: FunctionTool, root: dict[str, Any]) -> None:
    """Raise Unenforceable for schema keywords that the grammar of unquoted text cannot enforce.
    JSON between tags is enforced completely."""
    for form in options_of(root, root):
        if (keyword := unknown_keyword(form, _OBJECT_KEYWORDS)) is not None:
            raise Unenforceable(tool, "", keyword)
        for name, inner in members_of(form).items():
            place = f"/properties/{name}"
            _refuse_value(tool, place, inner, root)
        if isinstance(others := form.get("additionalProperties"), dict):
            _refuse_value(tool, "/additionalProperties", others, root)


def _refuse_value(tool: FunctionTool, place: str, inner: Any, root: dict[str, Any]) -> None:
    options = options_of(inner, root)
    texts = [option for option in options if "string" in types_of(option, root)]
    free = any(values_of(option, root) is None for option in texts)
    for option in options if free else texts:
        known = _LISTED_KEYWORDS if values_of(option, root) else _TEXT_KEYWORDS
        if (keyword := unknown_keyword(option, known)) is not None:
            raise Unenforceable(tool, place, keyword)
