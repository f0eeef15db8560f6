"""Converts JSON schemas to grammars, sets the white space of the JSON, and locates errors in a
schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.grammar.json_schema.number_precision import inexact_number_of, without_inexact_numbers
from penstock.grammar.json_schema.subschemas import (
    map_subschemas,
    subschemas,
    unescaped_step,
)
from penstock.grammar.json_schema.termination import can_terminate, endless_part_of, without_endless

if TYPE_CHECKING:  # the type exists only in the library's stub
    from llguidance._lib import JsonCompileOptions

SPACING: Final[JsonCompileOptions] = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}
"""White space of the JSON: one line, spaced like most JSON in training data. A model that could
choose the white space might fill an answer with it, and no token would be forced. `x-guidance` in
the schema overrides these options."""

_MAX_TRIALS: Final = 200
_MAX_ENDLESS: Final = 16
"""Maximum number of references that are removed from one schema because they never end."""
NO_VALUE: Final[dict[str, Any]] = {"type": "object", "properties": {"a": False}, "required": ["a"]}
"""A schema that no value matches. The library refuses it."""
_MAX_DEPTH: Final = 64
"""llguidance refuses deeper schemas."""
_ANY_NAME: Final[tuple[object, ...]] = ({"type": "string"}, {}, True)
_KEPT_LONGEST: Final = (
    "required", "allOf", "oneOf", "anyOf", "items", "$ref", "properties", "type",
)  # fmt: skip
"""Keywords in the order in which they are removed: keywords that say more about a value later."""


class SchemaFault(ValueError):
    """Raised for a schema that cannot be used. `place`: JSON pointer to the faulty part."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(reason)
        self.place = place


def schema_grammar(schema: str, *, strict: bool) -> str:
    """Return the serialized grammar of a schema, given as JSON text.

    Without `strict`, keywords that cannot be enforced are ignored. Raises ValueError if the text is
    not a JSON schema. With `strict`, raises SchemaFault if no finite value matches the schema or a
    number in the schema would lose digits.
    """
    try:
        decoded = json.loads(schema)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if decoded is True:
        decoded = {}
    if not isinstance(decoded, dict):
        raise ValueError("a JSON schema is an object")
    for _ in range(_MAX_ENDLESS):
        if can_terminate(decoded):
            break
        place = endless_part_of(decoded)
        if strict:
            raise SchemaFault(place, "no finite value matches it")
        del _part_at(decoded, place)["$ref"]
    inexact = inexact_number_of(decoded)
    if inexact is not None and strict:
        raise SchemaFault(*inexact)
    return _grammar(decoded, strict)


def schema_fault(
    schema: str, error: str, error_of: Callable[[str], str | None], *, strict: bool
) -> str:
    """Return the JSON pointer to the innermost subschema that causes `error` by itself; "" for the
    whole schema.

    `error_of` returns the error of a serialized grammar, None if it is valid.
    """
    root = json.loads(schema)
    if not isinstance(root, dict):
        return ""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    place, parts = "", subschemas(root)
    for _ in range(_MAX_TRIALS):
        step, part = next(parts, ("", None))
        if not step:
            break
        if isinstance(part, dict) and error_of(_grammar({**shared, **part}, strict)) == error:
            place, parts = f"{place}/{step}", subschemas(part)
    return place


def without_fault(
    schema: str, place: str, error: str, error_of: Callable[[str], str | None]
) -> str | None:
    """Remove the keyword that causes `error` from the subschema at `place`.

    `place`: a JSON pointer that `schema_fault` returned. Returns the JSON text of the whole schema,
    or None if no single keyword is the cause.
    """
    root = json.loads(schema)
    part = _part_at(root, place)
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    second = None
    for key in sorted(part, key=lambda k: _KEPT_LONGEST.index(k) if k in _KEPT_LONGEST else -1):
        rest = {name: value for name, value in part.items() if name != key}
        found = error_of(_grammar({**shared, **rest}, strict=False))
        if found is None:
            break
        if found != error and second is None:
            second = key
    else:
        if second is None:
            return None
        key = second
    del part[key]
    return json.dumps(root)


def schema_of_grammar(grammar: str) -> dict[str, Any]:
    """Return the JSON schema in a serialized grammar that `schema_grammar` made: the part of the
    original schema that is enforced."""
    schema: dict[str, Any] = json.loads(grammar)["grammars"][0]["json_schema"]
    return schema


def without_no_ops(schema: Any, depth: int = 0) -> Any:
    """Return a schema without keywords that have no effect but that the library refuses:
    `propertyNames` that every name matches, and `required: null`, which some clients send for an
    empty list."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    kept = dict(schema)
    if kept.get("propertyNames") in _ANY_NAME:
        del kept["propertyNames"]
    if kept.get("required", ()) is None:
        del kept["required"]
    return map_subschemas(kept, lambda part: without_no_ops(part, depth + 1))


def enforceable_schema(schema: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    """Prepare a schema for the library: remove keywords without effect, subschemas that no finite
    value matches, and numbers that would lose digits.

    If no finite value matches the whole schema, or a `strict` schema has a number that would lose
    digits, the result is `NO_VALUE`, which the library refuses.
    """
    if not can_terminate(schema) or (strict and inexact_number_of(schema) is not None):
        return NO_VALUE
    kept: dict[str, Any] = without_inexact_numbers(without_endless(without_no_ops(schema)))
    return kept


def _grammar(schema: dict[str, Any], strict: bool) -> str:
    from llguidance import LLMatcher

    overrides: JsonCompileOptions = {} if strict else {"lenient": True}
    prepared = enforceable_schema(schema, strict=strict)
    return LLMatcher.grammar_from_json_schema(prepared, defaults=SPACING, overrides=overrides)


def _part_at(root: Any, place: str) -> Any:
    """Return the value in `root` that a JSON pointer names."""
    part = root
    for step in place.split("/")[1:]:
        name = unescaped_step(step)
        part = part[int(name)] if isinstance(part, list) else part[name]
    return part
