"""Forbids keys that a schema does not list.

In JSON Schema, an object with `properties` may also have other keys. Clients that write such a
schema for an answer expect only the listed keys, but a model may invent other keys. So an object
schema with `properties` gets `additionalProperties: false` here, unless it sets
`additionalProperties` itself.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.grammar.json_schema.argument_schema import BINDING, flattened, required_of
from penstock.grammar.json_schema.subschemas import map_subschemas

_CHOICES: Final = ("anyOf", "oneOf")
_SHARED: Final[tuple[str, ...]] = ("$defs", "definitions")
_OPEN: Final = ("if", "dependentSchemas", "unevaluatedProperties")
"""Keywords that can allow further keys in ways that this module does not analyze. A schema with one
of them is not changed."""
_MAX_PARTS: Final = 20_000
_MAX_DEPTH: Final = 64


class _TooComplex(Exception):
    """The schema has too many subschemas or is nested too deeply."""


def without_extra_keys(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that forbids further keys in objects with `properties` and without
    `additionalProperties`.

    An object that is assembled by `allOf` or `$ref` may have the keys of all schemas that are
    combined. Each alternative of `anyOf` or `oneOf` is combined with the other keywords of its
    parent. A schema that is too large or too deep is returned unchanged.
    """
    try:
        closed: dict[str, Any] = _ExtraKeysRemover(schema).part(schema, 0)
    except _TooComplex:
        return schema
    return closed


class _ExtraKeysRemover:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = _MAX_PARTS

    def part(self, part: Any, depth: int) -> Any:
        """Return a subschema that forbids extra keys. Raises _TooComplex."""
        if not isinstance(part, dict):
            return part
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise _TooComplex
        if any(key in part for key in _OPEN):
            return part
        if _joins(part):
            return self._joined(part, depth)
        key = next((key for key in _CHOICES if _adds_keys(part, key)), None)
        if key is not None:
            rest = {name: value for name, value in part.items() if name != key}
            whole = {name: part[name] for name in _SHARED if name in part}
            options = [self.part({"allOf": [rest, option]}, depth + 1) for option in part[key]]
            return {**self._within(whole, depth), key: options}
        return self._within(_closed(part), depth)

    def _joined(self, part: dict[str, Any], depth: int) -> dict[str, Any]:
        """Merge `allOf` and `$ref` of a subschema into one object that forbids extra keys."""
        flat = flattened(part, self._root)
        if "additionalProperties" in flat:
            return part
        whole = {name: part[name] for name in _SHARED if name in part}
        joined = self.part({k: v for k, v in flat.items() if k != "allOf"}, depth + 1)
        rest = {"allOf": flat["allOf"]} if "allOf" in flat else {}
        return {**joined, **rest, **self._within(whole, depth)}

    def _within(self, part: dict[str, Any], depth: int) -> dict[str, Any]:
        return map_subschemas(part, lambda inner: self.part(inner, depth + 1))


def _closed(part: dict[str, Any]) -> dict[str, Any]:
    properties = part.get("properties")
    if not isinstance(properties, dict) or "additionalProperties" in part:
        return part
    needed = {name: True for name in required_of(part) if name not in properties}
    return {**part, "properties": {**properties, **needed}, "additionalProperties": False}


def _joins(part: dict[str, Any]) -> bool:
    """Whether a subschema combines several schemas for the same object (`allOf`, `$ref`)."""
    parts = part.get("allOf")
    binding = [one for one in parts if _binds(one)] if isinstance(parts, list) else []
    own = any(key in BINDING for key in part if key != "allOf")
    return len(binding) + own + ("$ref" in part) > 1


def _binds(part: Any) -> bool:
    return isinstance(part, dict) and any(key in BINDING or key == "$ref" for key in part)


def _adds_keys(part: dict[str, Any], key: str) -> bool:
    """Whether the alternatives under `key` can add properties to the parent's properties."""
    options = part.get(key)
    if "properties" not in part or not isinstance(options, list):
        return False
    return any(isinstance(o, dict) and {"properties", "$ref", "allOf"} & o.keys() for o in options)
