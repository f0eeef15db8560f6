"""The format of calls in Python syntax: f(city="Paris", days=3), or a list of such calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from penstock.dialog import FunctionTool
from penstock.grammar.json_schema.argument_schema import (
    Unenforceable,
    members_of,
    options_of,
    others_of,
    required_of,
)
from penstock.grammar.lark import LarkGrammar
from penstock.grammar.literals import PYTHON, refuse_unenforced
from penstock.text.tool_parsers.call_format import (
    MAX_NAME_CHARS,
    CallReader,
    Trigger,
    arguments_schema,
)
from penstock.text.tool_parsers.formats.python_values import (
    WORDS,
    as_json,
    python_value,
    read_token,
)
from penstock.text.tool_parsers.json_text import escaped
from penstock.text.tool_parsers.stream_reader import Malformed, StreamRead

_NAME: Final = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """Calls in Python syntax. Positional arguments get the names of the schema's properties, in
    order.

    `in_list`: the family writes calls in square brackets. Calls are read with or without brackets.
    """

    in_list: bool = True

    @property
    def wrapper(self) -> tuple[str, str]:
        return ("[", "]") if self.in_list else ("", "")

    @property
    def call_separator(self) -> str:
        return ", " if self.in_list else "\n"

    def marks(self) -> tuple[str, ...]:
        return ()

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        written = (f"{key}={PYTHON.write(value)}" for key, value in arguments.items())
        return f"{name}({', '.join(written)})"

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, prefix: str) -> str:
        schema = arguments_schema(tool)
        if tool.strict:
            refuse_unenforced(tool, schema)
            _refuse_names(tool, schema)
        forms = [_members(grammar, form, schema) for form in options_of(schema, schema)]
        return f'{grammar.literal(prefix + tool.name + "(")} {grammar.one_of(forms)} ")"'

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        return ()

    @property
    def arguments_first(self) -> str:
        return ""

    def read(self, io: CallReader) -> StreamRead[None]:
        reader = io.reader
        listed = yield from reader.literal("[")
        while True:
            yield from reader.spaces()
            yield from _call(io)
            yield from reader.spaces()
            if (yield from reader.literal(",", ";")):
                continue
            if listed:
                yield from reader.expect("]")
                return
            following = yield from reader.peek()
            if not (following.isalpha() or following == "_"):
                reader.rewind()
                return


def _members(grammar: LarkGrammar, form: dict[str, Any], root: dict[str, Any]) -> str:
    members, others = members_of(form), others_of(form)
    if not members and "properties" not in form and others is not None:
        value = PYTHON.value(grammar, others, root)
        return grammar.repeated(f'{grammar.terminal(_NAME)} "=" {value}', ", ")
    required = required_of(form)
    items = [
        (key + "=", PYTHON.value(grammar, inner, root), key in required)
        for key, inner in members.items()
        if _readable(key)
    ]
    return grammar.members(items, ", ")


def _readable(name: str) -> bool:
    """Whether the parser can read an argument of this name: `read_token` must accept all of its
    characters."""
    first, rest = name[:1], name[1:]
    return (first.isalpha() or first == "_") and all(c.isalnum() or c in "+-._" for c in rest)


def _refuse_names(tool: FunctionTool, root: dict[str, Any]) -> None:
    for form in options_of(root, root):
        for name in required_of(form):
            if not _readable(name):
                raise Unenforceable(tool, "/required", name)


def _names(schema: dict[str, Any]) -> list[str]:
    """Return the names of a schema's properties in their order."""
    return list(
        dict.fromkeys(name for form in options_of(schema, schema) for name in members_of(form))
    )


def _call(io: CallReader) -> StreamRead[None]:
    reader = io.reader
    head, _ = yield from reader.read_until(("(",), MAX_NAME_CHARS)
    name = head.strip()
    if not io.knows(name):
        name = name.removesuffix(".call").removeprefix("functions.")
    io.begin(name)
    names = _names(io.parameters(name))
    delimiter = "{"
    for index in range(1 << 16):
        yield from reader.spaces()
        if (yield from reader.literal(")")):
            break
        yield from _argument(io, names[index : index + 1], delimiter)
        delimiter = ", "
        yield from reader.spaces()
        if (yield from reader.peek()) != ")":
            yield from reader.expect(",")
    io.arguments("{}" if delimiter == "{" else "}")
    io.end()


def _argument(io: CallReader, position: list[str], delimiter: str) -> StreamRead[None]:
    reader = io.reader
    first = yield from reader.peek()
    word = None
    if first.isalpha() or first == "_":
        word = yield from read_token(reader)
        yield from reader.spaces()
        if word not in WORDS or (yield from reader.peek()) == "=":
            yield from reader.expect("=")
            yield from reader.spaces()
            io.arguments(f'{delimiter}"{escaped(word)}": ')
            yield from python_value(reader, io.arguments)
            return
    if not position:
        raise Malformed("an argument without a name")
    io.arguments(f'{delimiter}"{escaped(position[0])}": ')
    if word is not None:
        io.arguments(as_json(word))
    else:
        yield from python_value(reader, io.arguments)
