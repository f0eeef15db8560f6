"""Schemas whose objects take no further keys.

To JSON Schema an object with `properties` may have any others. Clients that write such a schema
for an answer mean the keys they list, and a model that may invent some does. So here what lists
keys and says nothing of others takes none; `additionalProperties` says otherwise.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.grammar.json_schema.argument_schema import BINDING, flattened, required_of

_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTED: Final = ("anyOf", "oneOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties")
_CHOICES: Final = ("anyOf", "oneOf")
_SHARED: Final[tuple[str, ...]] = ("$defs", "definitions")
_OPEN: Final = ("if", "dependentSchemas", "unevaluatedProperties")
"""What may bring further keys in a way that is not followed: such an object stays as it is."""
_MAX_PARTS: Final = 20_000
_MAX_DEPTH: Final = 64


class _TooMuch(Exception):
    pass


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, where objects with `properties` and without `additionalProperties` take no
    further keys. What `allOf` or a reference puts together is one object, which has the keys of
    all; so is each alternative of `anyOf` or `oneOf` with what stands beside it. A schema whose
    parts would have to be repeated too often stays as it is."""
    try:
        found: dict[str, Any] = _Closing(schema).part(schema, 0)
    except _TooMuch:
        return schema
    return found


class _Closing:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = _MAX_PARTS

    def part(self, part: Any, depth: int) -> Any:
        """Raises _TooMuch."""
        if not isinstance(part, dict):
            return part
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            raise _TooMuch
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
        """Merge `allOf` and a reference into one object."""
        flat = flattened(part, self._root)
        if "additionalProperties" in flat:
            return part
        whole = {name: part[name] for name in _SHARED if name in part}
        joined = self.part({k: v for k, v in flat.items() if k != "allOf"}, depth + 1)
        rest = {"allOf": flat["allOf"]} if "allOf" in flat else {}
        return {**joined, **rest, **self._within(whole, depth)}

    def _within(self, part: dict[str, Any], depth: int) -> dict[str, Any]:
        kept = dict(part)
        for key, value in part.items():
            if key in _NAMED and isinstance(value, dict):
                kept[key] = {name: self.part(inner, depth + 1) for name, inner in value.items()}
            elif (key in _LISTED or key == "allOf") and isinstance(value, list):
                kept[key] = [self.part(inner, depth + 1) for inner in value]
            elif key in _SINGLE:
                kept[key] = self.part(value, depth + 1)
        return kept


def _closed(part: dict[str, Any]) -> dict[str, Any]:
    properties = part.get("properties")
    if not isinstance(properties, dict) or "additionalProperties" in part:
        return part
    needed = {name: True for name in required_of(part) if name not in properties}
    return {**part, "properties": {**properties, **needed}, "additionalProperties": False}


def _joins(part: dict[str, Any]) -> bool:
    """Whether several parts say something of the same object."""
    parts = part.get("allOf")
    binding = [one for one in parts if _binds(one)] if isinstance(parts, list) else []
    own = any(key in BINDING for key in part if key != "allOf")
    return len(binding) + own + ("$ref" in part) > 1


def _binds(part: Any) -> bool:
    return isinstance(part, dict) and any(key in BINDING or key == "$ref" for key in part)


def _adds_keys(part: dict[str, Any], key: str) -> bool:
    """Whether alternatives have keys beside those that stand next to them."""
    options = part.get(key)
    if "properties" not in part or not isinstance(options, list):
        return False
    return any(isinstance(o, dict) and {"properties", "$ref", "allOf"} & o.keys() for o in options)
