"""Reads the schema of a function's arguments, for grammars that write arguments in a format other
than JSON: follows references, merges parts, lists alternatives.

Every walk has a limit, so that hostile schemas end early.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from penstock.dialog import FunctionTool
from penstock.grammar.json_schema.value_types import resolve, type_of, types_of

MAX_PARTS: Final = 256
MAX_OPTIONS: Final = 512
MAX_COUNT: Final = 2000
"""Larger bounds of a length are ignored: the lexer would need one state per item."""
_ROOT: Final = "arguments"
_CHOICES: Final = ("anyOf", "oneOf")
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems")
_MAX_DEPTH: Final = 200
"""llguidance refuses much flatter schemas."""
_BOOLEANS: Final = frozenset({"null", "boolean"})
BINDING: Final = frozenset({
    "$dynamicRef", "$recursiveRef", "additionalItems", "additionalProperties", "allOf", "anyOf",
    "const", "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "enum",
    "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxContains", "maxItems",
    "maxLength", "maxProperties", "maximum", "minContains", "minItems", "minLength",
    "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern", "patternProperties",
    "prefixItems", "properties", "propertyNames", "required", "then", "type",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
})  # fmt: skip
"""Keywords of JSON Schema that constrain values; all others are annotations."""


class Unenforceable(Exception):
    """The schema of a strict function has a keyword that the model's call format cannot enforce."""

    def __init__(self, tool: FunctionTool, place: str, keyword: str) -> None:
        super().__init__(f"{keyword} cannot be enforced in this model's tool call format")
        self.tool = tool
        self.place = place


def required_of(schema: dict[str, Any]) -> list[str]:
    """Return the names of the required members. Some clients send null for none."""
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def members_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return name -> schema of the members that an object may or must have by name: its properties
    and any other required names."""
    properties = schema.get("properties")
    named = dict(properties) if isinstance(properties, dict) else {}
    others = others_of(schema)
    if others is not None:
        named |= {name: others for name in required_of(schema) if name not in named}
    return named


def others_of(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of members that are not properties, or None if there may be none."""
    found = schema.get("additionalProperties")
    if found is False:
        return None
    return found if isinstance(found, dict) else {}


def member_of(schema: dict[str, Any], name: str) -> Any:
    """Return the schema of one member of an object, {} if the schema does not restrict it."""
    found: list[Any] = []
    for form in options_of(schema, schema):
        inner = members_of(form).get(name, others_of(form) or {})
        if inner not in found:
            found.append(inner)
    return found[0] if len(found) == 1 else {"anyOf": found}


def flattened(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its top-level reference and the parts of its allOf merged into it. Parts
    that contradict each other stay in allOf."""
    flat: dict[str, Any] = {}
    left: list[dict[str, Any]] = []
    for part in _parts(schema, root):
        for key, value in part.items():
            if not _put(flat, key, value):
                left.append({key: value})
    return {**flat, "allOf": left} if left else flat


def options_of(schema: Any, root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of the anyOf and oneOf at the top of a schema, each flattened."""
    waiting, found, spread = [schema], [], 0
    while waiting:
        flat = flattened(waiting.pop(0), root)
        key = next((key for key in _CHOICES if isinstance(flat.get(key), list) and flat[key]), None)
        if key is None or spread > MAX_OPTIONS:
            found.append(flat)
            continue
        spread += len(flat[key])
        rest = {name: value for name, value in flat.items() if name != key}
        waiting[:0] = [{"allOf": [rest, option]} for option in flat[key]]
    return found


def values_of(schema: Any, root: dict[str, Any]) -> list[Any] | None:
    """Return all values that a schema allows, or None if they are not listed."""
    found: dict[str, Any] = {}  # keyed by JSON text, since True == 1 in Python
    for option in options_of(schema, root):
        values = _listed(option)
        if values is None:
            return None
        found |= {json.dumps(value, ensure_ascii=False): value for value in values}
    return list(found.values()) or None


def count_of(schema: dict[str, Any], key: str) -> int | None:
    """Return a bound of a length, or None if there is none or it is too large to enforce."""
    found = schema.get(key)
    return found if isinstance(found, int) and 0 <= found <= MAX_COUNT else None


def unknown_keyword(schema: dict[str, Any], known: frozenset[str]) -> str | None:
    """Return the first constraining keyword that is not in `known`, or whose count is too large to
    enforce."""
    for key in schema:
        if key == "format" and "string" not in types_of(schema, {}):
            continue
        if key in BINDING - known or (key in _COUNTS and count_of(schema, key) is None):
            return key
    return None


def standalone(schema: Any, root: dict[str, Any]) -> Any:
    """Return a part of a schema together with all that its references name, so that it can be used
    on its own."""
    if '"$ref": "#' not in json.dumps(schema):
        return schema
    whole = {key: value for key, value in root.items() if key not in ("$id", "id", "$schema")}
    return {**_moved(schema), "$defs": {_ROOT: _moved(whole)}}


def _moved(schema: Any, depth: int = 0) -> Any:
    """Redirect all references of a schema to `_ROOT`."""
    if depth > _MAX_DEPTH:
        return schema
    if isinstance(schema, list):
        return [_moved(item, depth + 1) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, depth + 1) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = f"#/$defs/{_ROOT}{reference[1:]}"
    return moved


def _parts(schema: Any, root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a schema without its references and allOf, then the parts that these name."""
    waiting = [schema]
    for _ in range(MAX_PARTS):
        if not waiting:
            return
        part = waiting.pop(0)
        if not isinstance(part, dict):
            continue
        yield {k: v for k, v in part.items() if k not in ("$ref", "allOf", "$defs", "definitions")}
        more = part.get("allOf")
        waiting[:0] = more if isinstance(more, list) else []
        if isinstance(reference := part.get("$ref"), str):
            waiting.insert(0, resolve(reference, root))
    yield {"allOf": waiting}


def _put(flat: dict[str, Any], key: str, value: Any) -> bool:
    """Add a keyword to a schema. Returns False if it contradicts the keywords that are there."""
    known = flat.get(key)
    if key not in flat or known == value:
        flat[key] = value
    elif key == "properties" and isinstance(known, dict) and isinstance(value, dict):
        flat[key] = {**known, **{name: _both(known, name, value[name]) for name in value}}
    elif key == "required":
        flat[key] = list(dict.fromkeys([*required_of(flat), *required_of({key: value})]))
    elif key == "type":
        kinds = _kinds(flat) & _kinds({key: value})
        if not kinds:
            return False
        flat[key] = sorted(kinds)
    else:
        return key not in BINDING
    return True


def _both(known: dict[str, Any], name: str, inner: Any) -> Any:
    if name not in known or known[name] == inner:
        return inner
    return {"allOf": [known[name], inner]}


def _kinds(schema: dict[str, Any]) -> frozenset[str]:
    kinds = types_of(schema, {})
    return kinds | {"integer"} if "number" in kinds else kinds


def _listed(flat: dict[str, Any]) -> list[Any] | None:
    kinds = _kinds(flat) if "type" in flat else None
    values = [flat["const"]] if "const" in flat else flat.get("enum")
    if isinstance(values, list) and values:
        allowed = [value for value in values if kinds is None or type_of(value) in kinds]
        return allowed or values
    if kinds is None or not kinds <= _BOOLEANS:
        return None
    return [value for value in (True, False, None) if type_of(value) in kinds]
