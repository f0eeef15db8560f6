"""Calls written in Python: f(city="Paris", days=3), or a list of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dialog import FunctionTool
from penstock.text.channels.calls import MAX_NAME_CHARS, CallReader, arguments_schema
from penstock.text.channels.json_text import escaped
from penstock.text.channels.lark import LarkGrammar
from penstock.text.channels.literals import PYTHON
from penstock.text.channels.python_values import WORDS, as_json, python_value, read_token
from penstock.text.channels.reader import Malformed, Reading


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """`listed`: the family writes square brackets around the calls. Read are both forms.

    Arguments without a name take the names of the schema's properties, in their order.
    """

    listed: bool = True

    @property
    def around(self) -> tuple[str, str]:
        return ("[", "]") if self.listed else ("", "")

    @property
    def between(self) -> str:
        return ", " if self.listed else "\n"

    def marks(self) -> tuple[str, ...]:
        return ()

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        written = (f"{key}={PYTHON.write(value)}" for key, value in arguments.items())
        return f"{name}({', '.join(written)})"

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, lead: str) -> str:
        schema = arguments_schema(tool)
        properties = schema.get("properties")
        named = properties if isinstance(properties, dict) else {}
        required = schema.get("required", [])
        items = [
            (key + "=", PYTHON.value(grammar, inner, schema), key in required)
            for key, inner in named.items()
        ]
        return f'{grammar.literal(lead + tool.name + "(")} {grammar.members(items, ", ")} ")"'

    def trigger(self, tool: FunctionTool) -> str | None:
        return None

    def read(self, io: CallReader) -> Reading[None]:
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


def _call(io: CallReader) -> Reading[None]:
    reader = io.reader
    head, _ = yield from reader.upto(("(",), MAX_NAME_CHARS)
    name = head.strip()
    if not io.knows(name):
        name = name.removesuffix(".call").removeprefix("functions.")
    io.begin(name)
    properties = io.parameters(name).get("properties")
    names = list(properties) if isinstance(properties, dict) else []
    lead = "{"
    for index in range(1 << 16):
        yield from reader.spaces()
        if (yield from reader.literal(")")):
            break
        yield from _argument(io, names[index : index + 1], lead)
        lead = ", "
        yield from reader.spaces()
        if (yield from reader.peek()) != ")":
            yield from reader.expect(",")
    io.arguments("{}" if lead == "{" else "}")
    io.end()


def _argument(io: CallReader, position: list[str], lead: str) -> Reading[None]:
    reader = io.reader
    first = yield from reader.peek()
    word = None
    if first.isalpha() or first == "_":
        word = yield from read_token(reader)
        yield from reader.spaces()
        if word not in WORDS or (yield from reader.peek()) == "=":
            yield from reader.expect("=")
            yield from reader.spaces()
            io.arguments(f'{lead}"{escaped(word)}": ')
            yield from python_value(reader, io.arguments)
            return
    if not position:
        raise Malformed("an argument without a name")
    io.arguments(f'{lead}"{escaped(position[0])}": ')
    if word is not None:
        io.arguments(as_json(word))
    else:
        yield from python_value(reader, io.arguments)
