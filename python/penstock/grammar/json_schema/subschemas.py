"""Iterates over the subschemas of a JSON schema and makes JSON pointers to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

_NAMED: Final = ("$defs", "definitions", "properties", "patternProperties")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties")


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (relative JSON pointer, subschema) for each direct subschema of a schema."""
    for key in _NAMED:
        if isinstance(named := schema.get(key), dict):
            for name, part in named.items():
                yield f"{key}/{escaped_step(name)}", part
    for key in _LISTED:
        if isinstance(listed := schema.get(key), list):
            for index, part in enumerate(listed):
                yield f"{key}/{index}", part
    for key in _SINGLE:
        yield key, schema.get(key)


def map_subschemas(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a copy of a schema in which `change` was applied to each direct subschema."""
    changed = dict(schema)
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            changed[key] = {name: change(part) for name, part in value.items()}
        elif key in _LISTED and isinstance(value, list):
            changed[key] = [change(part) for part in value]
        elif key in _SINGLE:
            changed[key] = change(value)
    return changed


def escaped_step(name: str) -> str:
    """Escape a name for use in a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def unescaped_step(step: str) -> str:
    """Return the name that a step of a JSON pointer spells."""
    return step.replace("~1", "/").replace("~0", "~")
