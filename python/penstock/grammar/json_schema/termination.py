"""Finds subschemas of a JSON schema that no finite value matches because they require themselves.

A subschema can terminate if all subschemas that it requires can terminate: a least fixpoint over
the references. The grammar library would let an answer start a value of a subschema that cannot
terminate; here such a subschema is made to allow no value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.grammar.json_schema.subschemas import escaped_step, map_subschemas
from penstock.grammar.json_schema.value_types import resolve, types_of

_MAX_DEPTH: Final = 200
_MAX_PASSES: Final = 50
_MAX_REFERENCES: Final = 1000


def can_terminate(schema: Any) -> bool:
    """Whether a finite value may match a schema. Only references that never end are considered, not
    other contradictions."""
    root = schema if isinstance(schema, dict) else {}
    return _ends(schema, _ending(root), 0) or not _ends(schema, set(_references(root)), 0)


def without_endless(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which `false` replaces each subschema that no finite value matches."""
    ending = _ending(schema)
    if all(reference in ending for reference in _references(schema)):
        return schema
    kept = _replaced(schema, ending, 0)
    assert isinstance(kept, dict)
    return kept


def endless_part_of(schema: dict[str, Any]) -> str:
    """Return the JSON pointer to the reference because of which no finite value matches a
    schema."""
    ending = _ending(schema)
    place, part, seen = "", schema, set[str]()
    for _ in range(_MAX_DEPTH):
        reference = part.get("$ref") if isinstance(part, dict) else None
        if isinstance(reference, str) and reference not in ending:
            if reference in seen or not reference.startswith("#"):
                break
            seen.add(reference)
            place, part = reference[1:], resolve(reference, schema)
            continue
        step = next(
            ((step, inner) for step, inner in _needed(part) if not _ends(inner, ending, 0)),
            None,
        )
        if step is None:
            break
        place, part = f"{place}/{step[0]}", step[1]
    return place


def _ending(root: dict[str, Any]) -> set[str]:
    """Return the references of a schema whose targets can terminate. Returns all references if the
    search takes too long."""
    waiting = list(dict.fromkeys(_references(root)))
    ending: set[str] = set()
    if len(waiting) > _MAX_REFERENCES:
        return set(waiting)
    for _ in range(_MAX_PASSES):
        left = []
        for one in reversed(waiting):  # each pass reverses the order: a chain needs few passes
            if _ends(resolve(one, root), ending, 0):
                ending.add(one)
            else:
                left.append(one)
        if len(left) == len(waiting):
            return ending
        waiting = left
    return ending.union(waiting)


def _references(part: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(part, dict):
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            yield reference
    if depth > _MAX_DEPTH or not isinstance(part, dict | list):
        return
    for inner in part.values() if isinstance(part, dict) else part:
        yield from _references(inner, depth + 1)


def _ends(schema: Any, ending: set[str], depth: int) -> bool:
    if schema is False:
        return False
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return True
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#") and reference not in ending:
        return False
    if "const" in schema or "enum" in schema:
        return True
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if not isinstance(options, list) or not options:
            continue
        if not any(_ends(option, ending, depth + 1) for option in options):
            return False
    return all(_ends(inner, ending, depth + 1) for _, inner in _needed(schema))


def _needed(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield (relative JSON pointer, subschema) for each subschema that every value of a schema must
    match or contain."""
    if not isinstance(schema, dict):
        return
    for index, part in enumerate(_list(schema, "allOf")):
        yield f"allOf/{index}", part
    kinds = types_of(schema, {})
    if kinds == {"object"}:
        properties = schema.get("properties")
        named = properties if isinstance(properties, dict) else {}
        for name in _list(schema, "required"):
            if isinstance(name, str):
                if name in named:
                    yield f"properties/{escaped_step(name)}", named[name]
                else:
                    yield "additionalProperties", schema.get("additionalProperties", True)
    least = schema.get("minItems")
    if kinds == {"array"} and isinstance(least, int):
        first = _list(schema, "prefixItems")[:least]
        for index, part in enumerate(first):
            yield f"prefixItems/{index}", part
        if least > len(first):
            yield "items", schema.get("items", True)


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _replaced(schema: Any, ending: set[str], depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema

    def inner(part: Any) -> Any:
        if not _ends(part, ending, 0):
            return False
        return _replaced(part, ending, depth + 1)

    return map_subschemas(schema, inner)
