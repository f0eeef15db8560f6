"""JSON schemas as grammars: how the JSON is spaced, and where in a schema an error is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from penstock.grammar.json_schema.number_precision import inexact_number_of, without_inexact_numbers
from penstock.grammar.json_schema.termination import can_terminate, endless_part_of, without_endless

if TYPE_CHECKING:  # the library names the type in its stub only
    from llguidance._lib import JsonCompileOptions

SPACING: Final[JsonCompileOptions] = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}
"""One line, spaced as most JSON that models were trained on. A model that may choose its white
space can fill an answer with it, and nothing would be forced. A schema's own `x-guidance` wins."""

_MAX_TRIALS: Final = 200
_MAX_ENDLESS: Final = 16
"""References that are left out of one schema."""
NOTHING: Final[dict[str, Any]] = {"type": "object", "properties": {"a": False}, "required": ["a"]}
"""A schema that nothing fits, which the library refuses."""
_NAMED: Final = ("$defs", "definitions", "properties", "patternProperties")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties")
_MAX_DEPTH: Final = 64
"""llguidance refuses deeper schemas."""
_ANY_NAME: Final[tuple[object, ...]] = ({"type": "string"}, {}, True)
_KEPT_LONGEST: Final = (
    "required", "allOf", "oneOf", "anyOf", "items", "$ref", "properties", "type",
)  # fmt: skip
"""What tells most of a schema, the most telling last."""


class SchemaFault(ValueError):
    """A schema that cannot be used, and the place in it as a JSON pointer."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(reason)
        self.place = place


def schema_grammar(schema: str, *, strict: bool) -> str:
    """The serialized grammar of a schema's JSON text. Not `strict`: keywords that cannot be
    enforced are ignored. Raises ValueError for what is no JSON schema, SchemaFault for one that no
    value fits which comes to an end, or that has a number which would not be kept."""
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
            raise SchemaFault(place, "no value that fits it comes to an end")
        del _part_at(decoded, place)["$ref"]
    lost = inexact_number_of(decoded)
    if lost is not None and strict:
        place, keyword, number = lost
        raise SchemaFault(place, f"`{keyword}` cannot be kept to the last digit of {number}")
    return _grammar(decoded, strict)


def schema_fault(
    schema: str, error: str, error_of: Callable[[str], str | None], *, strict: bool
) -> str:
    """The place of the innermost part of a schema that gives `error` by itself, as a JSON pointer;
    "" for the whole of it. `error_of` tells what is wrong with a serialized grammar."""
    root = json.loads(schema)
    if not isinstance(root, dict):
        return ""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    place, parts = "", _parts(root)
    for _ in range(_MAX_TRIALS):
        step, part = next(parts, ("", None))
        if not step:
            break
        if isinstance(part, dict) and error_of(_grammar({**shared, **part}, strict)) == error:
            place, parts = f"{place}/{step}", _parts(part)
    return place


def without_fault(
    schema: str, place: str, error: str, error_of: Callable[[str], str | None]
) -> str | None:
    """A schema without the keyword that gives `error` at a place that `schema_fault` found; None
    where it is no single one."""
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


def enforced(grammar: str) -> dict[str, Any]:
    """The schema of a grammar that was made from one."""
    schema: dict[str, Any] = json.loads(grammar)["grammars"][0]["json_schema"]
    return schema


def plain(schema: Any, depth: int = 0) -> Any:
    """A schema without what says nothing and the library would refuse: `propertyNames` that every
    name fits, and null as `required`, which some clients write for an empty list."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    kept = dict(schema)
    if kept.get("propertyNames") in _ANY_NAME:
        del kept["propertyNames"]
    if kept.get("required", ()) is None:
        del kept["required"]
    for key, value in kept.items():
        if key in _NAMED and isinstance(value, dict):
            kept[key] = {name: plain(part, depth + 1) for name, part in value.items()}
        elif key in _LISTED and isinstance(value, list):
            kept[key] = [plain(part, depth + 1) for part in value]
        elif key in _SINGLE:
            kept[key] = plain(value, depth + 1)
    return kept


def enforceable(schema: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    """A schema as the library takes it: `plain`, and nothing in it that could never end or would be
    kept inexactly. A `strict` one that has such a thing allows nothing, which is refused."""
    if not can_terminate(schema) or (strict and inexact_number_of(schema) is not None):
        return NOTHING
    kept: dict[str, Any] = without_inexact_numbers(without_endless(plain(schema)))
    return kept


def _grammar(schema: dict[str, Any], strict: bool) -> str:
    from llguidance import LLMatcher

    overrides: JsonCompileOptions = {} if strict else {"lenient": True}
    taken = enforceable(schema, strict=strict)
    return LLMatcher.grammar_from_json_schema(taken, defaults=SPACING, overrides=overrides)


def _part_at(root: Any, place: str) -> Any:
    """The value that a JSON pointer names."""
    part = root
    for step in place.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        part = part[int(name)] if isinstance(part, list) else part[name]
    return part


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(step of a JSON pointer, schema) for each part of a schema."""
    for key in _NAMED:
        named = schema.get(key)
        if isinstance(named, dict):
            for name, part in named.items():
                yield f"{key}/{name.replace('~', '~0').replace('/', '~1')}", part
    for key in _LISTED:
        listed = schema.get(key)
        if isinstance(listed, list):
            for index, part in enumerate(listed):
                yield f"{key}/{index}", part
    for key in _SINGLE:
        yield key, schema.get(key)
