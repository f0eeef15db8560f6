"""Grammars of values that are not written as JSON: Python literals, relaxed JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from penstock.text.channels.lark import LarkGrammar
from penstock.text.channels.typed import ANY, resolved, types_of

MAX_DEPTH: Final = 8
ANY_VALUE: Final = "any_value"
NUMBER: Final = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"
INTEGER: Final = r"/-?(0|[1-9][0-9]*)/"


@dataclass(frozen=True, slots=True)
class LiteralStyle:
    """`words`: how true, false and null are written. `quote`: what stands around a string, `string`
    a terminal for what is between. `bare_keys`: keys of objects without quotes."""

    words: tuple[str, str, str]
    quote: str
    string: str
    colon: str
    comma: str
    bare_keys: bool = False

    def write(self, value: Any) -> str:
        """The text of a decoded JSON value."""
        match value:
            case True | False | None:
                return self.words[(True, False, None).index(value)]
            case str():
                inner = value if self.bare_keys else json.dumps(value, ensure_ascii=False)[1:-1]
                return self.quote + inner + self.quote
            case dict():
                items = (f"{self._key(key)}{self.colon}{self.write(v)}" for key, v in value.items())
                return "{" + self.comma.join(items) + "}"
            case list():
                return "[" + self.comma.join(map(self.write, value)) + "]"
            case _:
                return json.dumps(value)

    def _key(self, key: str) -> str:
        return key if self.bare_keys else self.write(key)

    def value(self, grammar: LarkGrammar, schema: Any, root: dict[str, Any], depth: int = 0) -> str:
        """An expression for the values that a schema allows, as far as its types, enumerations,
        items and properties tell."""
        schema = resolved(schema, root)
        enum = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(enum, list) and enum:
            return grammar.one_of(grammar.literal(self.write(value)) for value in enum)
        if depth >= MAX_DEPTH:
            return self._any(grammar)
        options = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(options, list):
            return grammar.one_of(self.value(grammar, o, root, depth + 1) for o in options)
        kinds = types_of(schema, root)
        if kinds == ANY:
            return self._any(grammar)
        return grammar.one_of(
            self._kind(grammar, kind, schema, root, depth) for kind in sorted(kinds)
        )

    def members(
        self, grammar: LarkGrammar, schema: Any, root: dict[str, Any], depth: int = 0
    ) -> str:
        """The members of an object, in the order of its properties."""
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            self._any(grammar)
            return grammar.repeated(self._any_member(grammar), self.comma)
        required = schema.get("required", [])
        items = []
        for name, inner in properties.items():
            value = self.value(grammar, inner, root, depth + 1)
            items.append((self._key(name) + self.colon, value, name in required))
        return grammar.members(items, self.comma)

    def _kind(
        self, grammar: LarkGrammar, kind: str, schema: Any, root: dict[str, Any], depth: int
    ) -> str:
        match kind:
            case "string":
                return grammar.quoted(self.quote, self.string)
            case "integer":
                return grammar.terminal(INTEGER)
            case "number":
                return grammar.terminal(NUMBER)
            case "boolean":
                return grammar.one_of(map(grammar.literal, self.words[:2]))
            case "null":
                return grammar.literal(self.words[2])
            case "array":
                item = self.value(grammar, schema.get("items", {}), root, depth + 1)
                return f'"[" {grammar.repeated(item, self.comma)} "]"'
            case _:
                return f'"{{" {self.members(grammar, schema, root, depth)} "}}"'

    def _any(self, grammar: LarkGrammar) -> str:
        """Any value at all."""
        kinds = ("string", "number", "boolean", "null")
        plain = [self._kind(grammar, kind, {}, {}, 0) for kind in kinds]
        array = f'"[" {grammar.repeated(ANY_VALUE, self.comma)} "]"'
        members = grammar.repeated(self._any_member(grammar), self.comma)
        whole = " | ".join([*plain, array, f'"{{" {members} "}}"'])
        return grammar.named(ANY_VALUE, whole)

    def _any_member(self, grammar: LarkGrammar) -> str:
        name = r"/[A-Za-z_][A-Za-z0-9_]*/"
        key = grammar.terminal(name) if self.bare_keys else grammar.quoted('"', name)
        return f"{key} {grammar.literal(self.colon)} {ANY_VALUE}"


PYTHON: Final = LiteralStyle(
    words=("True", "False", "None"),
    quote='"',
    string=r'/([^"\\\n\r]|\\["\\nrt])*/',
    colon=": ",
    comma=", ",
)


def relaxed(quote: str) -> LiteralStyle:
    """Unquoted keys, no spaces, strings between marks."""
    return LiteralStyle(
        words=("true", "false", "null"),
        quote=quote,
        string=r"/[^<]*/",
        colon=":",
        comma=",",
        bare_keys=True,
    )
