"""Finds the JSON types that a schema allows, and resolves references."""

from __future__ import annotations

from typing import Any, Final

from penstock.grammar.json_schema.subschemas import unescaped_step

ANY: Final = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_MAX_DEPTH: Final = 16


def types_of(schema: Any, root: dict[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema allows. `root`: the schema in which references are
    resolved."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return ANY
    if isinstance(reference := schema.get("$ref"), str):
        return types_of(resolve(reference, root), root, depth + 1)
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named}) & ANY or ANY
    if isinstance(named, list):
        return frozenset(t for t in named if isinstance(t, str)) & ANY or ANY
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return frozenset(map(type_of, values))
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list) and options:
            return frozenset().union(*(types_of(o, root, depth + 1) for o in options))
    if isinstance(parts := schema.get("allOf"), list) and parts:
        return ANY.intersection(*(types_of(part, root, depth + 1) for part in parts)) or ANY
    return ANY


def type_of(value: Any) -> str:
    """Return the JSON type of a decoded value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def resolve(reference: str, root: dict[str, Any]) -> Any:
    """Return the value in `root` that a reference (`#` and a JSON pointer) names.

    Returns {} for a reference to another document, None if the value does not exist.
    """
    if not reference.startswith("#"):
        return {}
    found: Any = root
    for step in reference[1:].split("/")[1:]:
        if isinstance(found, list) and step in map(str, range(len(found))):
            found = found[int(step)]
        else:
            key = unescaped_step(step)
            found = found.get(key) if isinstance(found, dict) else None
    return found
