"""Random JSON schemas, generated from a seed, over all supported keywords.

They have the shapes that APIs use (nested objects, lists, tagged unions, references, recursion).
Schemas written by people are in `bench.harness.public_schemas`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

_WORDS = (
    *("name", "title", "id", "kind", "state", "city", "price", "count", "total", "email", "date"),
    *("items", "owner", "address", "street", "tags", "score", "active", "version", "notes"),
    *("size", "colour", "weight", "author", "rating", "currency", "quantity", "country"),
)
_PATTERNS = (
    "^[A-Z]{2}-[0-9]{3,5}$",
    "^[a-z]+(_[a-z]+)?$",
    "^#[0-9a-f]{6}$",
    "^(yes|no|maybe)$",
    "^[^ ]{2,8}$",
    "[0-9]",
)
_FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "hostname", "uri")


def make_schemas(count: int, seed: int = 1) -> list[Schema]:
    """Make `count` schemas, the same ones for the same seed. Nearly all let an answer end within
    some hundred tokens."""
    return [_Maker(random.Random(seed * 100_003 + index)).root() for index in range(count)]


class _Maker:
    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._defs: dict[str, Schema] = {}

    def root(self) -> Schema:
        depth = self._draw.choice([0, 1, 1, 1, 2, 2, 3])
        made = self._object(depth) if self._draw.random() < 0.8 else self._any(depth)
        if self._defs:
            made["$defs"] = self._defs
        return made

    def _any(self, depth: int) -> Schema:
        leaves: list[Callable[[], Schema]] = [
            self._string,
            self._string,
            self._integer,
            self._number,
            self._enum,
            lambda: {"const": self._value()},
            lambda: {"type": "boolean"},
            lambda: {"type": "null"},
            lambda: {"type": [self._draw.choice(["integer", "boolean"]), "null"]},
        ]
        nodes: list[Callable[[], Schema]] = [
            lambda: self._object(depth - 1),
            lambda: self._object(depth - 1),
            lambda: self._array(depth - 1),
            lambda: self._tuple(depth - 1),
            lambda: {"anyOf": [self._any(depth - 1) for _ in range(self._draw.randint(2, 4))]},
            lambda: self._tagged(depth - 1),
            lambda: self._reference(depth - 1),
            lambda: self._all_of(depth - 1),
        ]
        made = self._draw.choice(leaves if depth <= 0 else leaves + 2 * nodes)()
        if self._draw.random() < 0.15:
            made["description"] = "What it is."
        return made

    def _names(self, least: int, most: int) -> list[str]:
        return self._draw.sample(_WORDS, self._draw.randint(least, most))

    def _value(self) -> Any:
        return self._draw.choice(["a", "B b", "", 0, -7, 2.5, True, None, "ü\n", "x" * 12])

    def _string(self) -> Schema:
        made: Schema = {"type": "string"}
        match self._draw.randrange(6):
            case 0:
                made["pattern"] = self._draw.choice(_PATTERNS)
                made["maxLength"] = 20
            case 1:
                made["format"] = self._draw.choice(_FORMATS)
            case 2:
                made["minLength"] = self._draw.randint(0, 4)
                made["maxLength"] = made["minLength"] + self._draw.randint(0, 12)
            case _:
                made["maxLength"] = self._draw.randint(4, 40)
        return made

    def _integer(self) -> Schema:
        made: Schema = {"type": "integer"}
        low = self._draw.randint(-1000, 1000)
        high = low + self._draw.randint(0, 5000)
        made[self._draw.choice(["minimum", "exclusiveMinimum"])] = low - 1
        made[self._draw.choice(["maximum", "exclusiveMaximum"])] = high + 1
        if self._draw.random() < 0.2:
            made = {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 5}
        return made

    def _number(self) -> Schema:
        low = round(self._draw.uniform(-50, 50), 2)
        made: Schema = {"type": "number", "minimum": low, "maximum": low + 70}
        if self._draw.random() < 0.7:  # otherwise as many digits as the model chooses
            made["multipleOf"] = 0.01
        return made

    def _enum(self) -> Schema:
        values = [self._value() for _ in range(self._draw.randint(1, 6))]
        return {"enum": [v for i, v in enumerate(values) if v not in values[:i]]}

    def _object(self, depth: int) -> Schema:
        names = self._names(1, 6)
        made: Schema = {
            "type": "object",
            "properties": {name: self._any(depth) for name in names},
            "required": [name for name in names if self._draw.random() < 0.7],
            "additionalProperties": False,
        }
        match self._draw.randrange(10):
            case 0:
                made["additionalProperties"] = {"type": "integer", "minimum": 0, "maximum": 9}
            case 1:
                made["patternProperties"] = {"^x_[a-z]{1,4}$": {"type": "boolean"}}
            case 2:
                made["required"] = names
                made["minProperties"] = len(names)
        return made

    def _array(self, depth: int) -> Schema:
        least = self._draw.randint(0, 2)
        most = least + self._draw.randint(1, 3)
        return {"type": "array", "items": self._any(depth), "minItems": least, "maxItems": most}

    def _tuple(self, depth: int) -> Schema:
        parts = [self._any(depth) for _ in range(self._draw.randint(1, 3))]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}

    def _tagged(self, depth: int) -> Schema:
        """Make a tagged union, as of message types."""
        choices = []
        for tag in self._names(2, 3):
            made = self._object(depth)
            made["properties"] = {"type": {"const": tag}, **made["properties"]}
            made["required"] = ["type", *made["required"]]
            choices.append(made)
        return {self._draw.choice(["anyOf", "oneOf"]): choices}

    def _reference(self, depth: int) -> Schema:
        name = f"d{len(self._defs)}"
        self._defs[name] = {}
        made = self._object(depth)
        if self._draw.random() < 0.3:  # a list that may nest itself
            made["properties"]["next"] = {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/{name}"}]}
        self._defs[name] = made
        return {"$ref": f"#/$defs/{name}"}

    def _all_of(self, depth: int) -> Schema:
        first, second = self._names(2, 2)
        parts = [
            {"type": "object", "properties": {first: self._any(depth)}, "required": [first]},
            {"type": "object", "properties": {second: self._any(depth)}, "required": [second]},
        ]
        return {"allOf": parts}
