"""Builds grammars for values that are not written as JSON: Python literals and relaxed JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from penstock.dialog import FunctionTool
from penstock.grammar.json_schema.argument_schema import (
    Unenforceable,
    count_of,
    members_of,
    options_of,
    others_of,
    required_of,
    unknown_keyword,
    values_of,
)
from penstock.grammar.json_schema.value_types import ANY, types_of
from penstock.grammar.lark import LarkGrammar, repetition

MAX_DEPTH: Final = 8
ANY_VALUE: Final = "any_value"
INTEGER: Final = "/-?(0|[1-9][0-9]{0,99})/"
NUMBER: Final = r"/-?(0|[1-9][0-9]{0,99})(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?/"
"""Regular expression of a number. A double can represent its magnitude."""
_BOUNDS: Final = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
)
_LENGTHS: Final = ("minLength", "maxLength", "minItems", "maxItems")
_INNER: Final = ("properties", "required", "additionalProperties", "items")
_KEYWORDS: Final = frozenset({"type", "enum", "const", *_INNER, *_LENGTHS, *_BOUNDS})
"""Keywords that these grammars enforce, in addition to `$ref`, `anyOf`, `oneOf` and `allOf`."""
_IMPLIED: Final = {
    "string": ("minLength", "maxLength"),
    "number": _BOUNDS,
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
}


@dataclass(frozen=True, slots=True)
class LiteralStyle:
    """Describes how values are written.

    - `words`: the spellings of true, false and null.
    - `quote`: the text before and after a string.
    - `char`: a regular expression for one character of a string.
    - `colon`: the text between key and value.
    - `comma`: the text between items.
    - `bare_keys`: object keys have no quotes.
    """

    words: tuple[str, str, str]
    quote: str
    char: str
    colon: str
    comma: str
    bare_keys: bool = False

    def write(self, value: Any) -> str:
        """Return the text of a decoded JSON value."""
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
        """Return a grammar expression for the values that a schema allows. Keywords that are not in
        `_KEYWORDS` are ignored."""
        values = values_of(schema, root)
        if values is not None:
            return grammar.one_of(grammar.literal(self.write(value)) for value in values)
        if depth >= MAX_DEPTH:
            return self._any(grammar)
        options = options_of(schema, root)
        return grammar.one_of(self._option(grammar, option, root, depth) for option in options)

    def _option(
        self, grammar: LarkGrammar, option: dict[str, Any], root: dict[str, Any], depth: int
    ) -> str:
        values = values_of(option, root)
        if values is not None:
            return grammar.one_of(grammar.literal(self.write(value)) for value in values)
        kinds = _kinds(option)
        if kinds == ANY:
            return self._any(grammar)
        return grammar.one_of(
            self._kind(grammar, kind, option, root, depth) for kind in sorted(kinds)
        )

    def members(
        self, grammar: LarkGrammar, schema: Any, root: dict[str, Any], depth: int = 0
    ) -> str:
        """Return a grammar expression for the members of an object, in the order of the schema's
        properties."""
        forms = options_of(schema, root)
        return grammar.one_of(self._form(grammar, form, root, depth) for form in forms)

    def _form(
        self, grammar: LarkGrammar, form: dict[str, Any], root: dict[str, Any], depth: int
    ) -> str:
        members, others = members_of(form), others_of(form)
        if not members and others is not None:
            value = self.value(grammar, others, root, depth + 1)
            return grammar.repeated(self._any_member(grammar, value), self.comma)
        required = required_of(form)
        items = []
        for name, inner in members.items():
            value = self.value(grammar, inner, root, depth + 1)
            items.append((self._key(name) + self.colon, value, name in required))
        return grammar.members(items, self.comma)

    def _kind(
        self, grammar: LarkGrammar, kind: str, schema: Any, root: dict[str, Any], depth: int
    ) -> str:
        match kind:
            case "string":
                times = repetition(
                    count_of(schema, "minLength") or 0, count_of(schema, "maxLength")
                )
                return grammar.quoted(self.quote, f"/({self.char}){times}/")
            case "integer" | "number":
                bounds = {key: schema[key] for key in _BOUNDS if key in schema}
                if bounds:  # numbers with bounds are written as in JSON
                    return grammar.schema({"type": kind, **bounds}, strict=True)
                return grammar.terminal(INTEGER if kind == "integer" else NUMBER)
            case "boolean":
                return grammar.one_of(map(grammar.literal, self.words[:2]))
            case "null":
                return grammar.literal(self.words[2])
            case "array":
                item = self.value(grammar, schema.get("items", {}), root, depth + 1)
                least, most = count_of(schema, "minItems") or 0, count_of(schema, "maxItems")
                return f'"[" {grammar.repeated(item, self.comma, least, most)} "]"'
            case _:
                return f'"{{" {self.members(grammar, schema, root, depth)} "}}"'

    def _any(self, grammar: LarkGrammar) -> str:
        """Return a grammar expression for any value."""
        kinds = ("string", "number", "boolean", "null")
        plain = [self._kind(grammar, kind, {}, {}, 0) for kind in kinds]
        array = f'"[" {grammar.repeated(ANY_VALUE, self.comma)} "]"'
        members = grammar.repeated(self._any_member(grammar, ANY_VALUE), self.comma)
        whole = " | ".join([*plain, array, f'"{{" {members} "}}"'])
        return grammar.named(ANY_VALUE, whole)

    def _any_member(self, grammar: LarkGrammar, value: str) -> str:
        name = r"/[A-Za-z_][A-Za-z0-9_]{0,63}/"
        key = grammar.terminal(name) if self.bare_keys else grammar.quoted('"', name)
        return f"{key} {grammar.literal(self.colon)} {value}"


def refuse_unenforced(tool: FunctionTool, root: dict[str, Any]) -> None:
    """Raise Unenforceable if a schema has a keyword that is not in `_KEYWORDS`."""
    _refuse(tool, root, root, "", 0)


def _refuse(tool: FunctionTool, schema: Any, root: dict[str, Any], place: str, depth: int) -> None:
    for option in options_of(schema, root):
        if (keyword := unknown_keyword(option, _KEYWORDS)) is not None:
            raise Unenforceable(tool, place, keyword)
        inner = {f"/properties/{name}": part for name, part in members_of(option).items()}
        inner |= {f"/{key}": option.get(key) for key in ("items", "additionalProperties")}
        for step, part in inner.items():
            if isinstance(part, dict):
                if depth == MAX_DEPTH:
                    raise Unenforceable(tool, place, f"a depth of more than {MAX_DEPTH}")
                _refuse(tool, part, root, place + step, depth + 1)


def _kinds(option: dict[str, Any]) -> frozenset[str]:
    """Return the JSON types that a schema allows. If it has no `type`, its other keywords imply the
    types."""
    if "type" not in option:
        implied = {kind for kind, keys in _IMPLIED.items() if any(key in option for key in keys)}
        if implied:
            return frozenset(implied)
    return types_of(option, {})


PYTHON: Final = LiteralStyle(
    words=("True", "False", "None"),
    quote='"',
    char=r'[^"\\\n\r]|\\["\\nrt]',
    colon=": ",
    comma=", ",
)


def relaxed(quote: str) -> LiteralStyle:
    """Return the style with unquoted keys, no spaces, and strings between `quote` marks."""
    return LiteralStyle(
        words=("true", "false", "null"),
        quote=quote,
        char="[^<]",
        colon=":",
        comma=",",
        bare_keys=True,
    )
