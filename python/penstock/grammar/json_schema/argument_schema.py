"""Reads the JSON schema of a function's arguments, for grammars of call formats that do not write
JSON: follows references, merges `allOf`, lists alternatives.

All loops and recursions are limited, so that a hostile schema cannot take long.
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
"""Largest minimum or maximum length that is enforced: the lexer needs one state per item."""
_ROOT: Final = "arguments"
_CHOICES: Final = ("anyOf", "oneOf")
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems")
_MAX_DEPTH: Final = 200
"""Maximum nesting of a schema. llguidance already refuses schemas with much less nesting."""
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
"""Keywords of JSON Schema that constrain values. All other keywords are annotations."""


class Unenforceable(Exception):
    """Raised if the schema of a strict function has a keyword that the model's call format cannot
    enforce.

    - `tool`: the function.
    - `place`: JSON pointer to the schema with the keyword.
    """

    def __init__(self, tool: FunctionTool, place: str, keyword: str) -> None:
        super().__init__(f"{keyword} cannot be enforced in this model's tool call format")
        self.tool = tool
        self.place = place


def required_of(schema: dict[str, Any]) -> list[str]:
    """Return the names in a schema's `required`; [] if it is absent or null, which some clients
    send."""
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def members_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the members that an object schema names, as name -> schema: its properties, and
    required members that are not properties but are allowed."""
    properties = schema.get("properties")
    named = dict(properties) if isinstance(properties, dict) else {}
    others = others_of(schema)
    if others is not None:
        named |= {name: others for name in required_of(schema) if name not in named}
    return named


def others_of(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema (`additionalProperties`) of an object's members that `properties` does not
    name: {} if it does not restrict them, None if it forbids them."""
    found = schema.get("additionalProperties")
    if found is False:
        return None
    return found if isinstance(found, dict) else {}


def member_of(schema: dict[str, Any], name: str) -> Any:
    """Return the schema of the member `name` of an object, {} if the member is not restricted."""
    found: list[Any] = []
    for form in options_of(schema, schema):
        inner = members_of(form).get(name, others_of(form) or {})
        if inner not in found:
            found.append(inner)
    return found[0] if len(found) == 1 else {"anyOf": found}


def flattened(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its top-level `$ref` and `allOf` merged. Keywords that contradict
    merged keywords stay in `allOf`."""
    flat: dict[str, Any] = {}
    left: list[dict[str, Any]] = []
    for part in _parts(schema, root):
        for key, value in part.items():
            if not _put(flat, key, value):
                left.append({key: value})
    return {**flat, "allOf": left} if left else flat


def options_of(schema: Any, root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of the `anyOf` and `oneOf` at the top of a schema, each merged with
    the rest of the schema and flattened. A schema without alternatives gives one flattened
    schema."""
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
    """Return all values that a schema allows, or None if the schema does not list its values."""
    found: dict[str, Any] = {}  # keyed by JSON text, since True == 1 in Python
    for option in options_of(schema, root):
        values = _listed(option)
        if values is None:
            return None
        found |= {json.dumps(value, ensure_ascii=False): value for value in values}
    return list(found.values()) or None


def count_of(schema: dict[str, Any], key: str) -> int | None:
    """Return a schema's bound `key`, e.g. `maxLength`. None: the schema has no such bound, or it is
    too large to enforce."""
    found = schema.get(key)
    return found if isinstance(found, int) and 0 <= found <= MAX_COUNT else None


def unknown_keyword(schema: dict[str, Any], known: frozenset[str]) -> str | None:
    """Return the first keyword that constrains values and cannot be enforced: it is not in `known`,
    or its bound is too large. None if all keywords can be enforced."""
    for key in schema:
        if key == "format" and "string" not in types_of(schema, {}):
            continue
        if key in BINDING - known or (key in _COUNTS and count_of(schema, key) is None):
            return key
    return None


def standalone(schema: Any, root: dict[str, Any]) -> Any:
    """Return a part of the schema `root` as a complete schema: definitions that its references name
    are included."""
    if '"$ref": "#' not in json.dumps(schema):
        return schema
    whole = {key: value for key, value in root.items() if key not in ("$id", "id", "$schema")}
    return {**_moved(schema), "$defs": {_ROOT: _moved(whole)}}


def _moved(schema: Any, depth: int = 0) -> Any:
    """Return a schema whose references point to the copy of the root schema under `_ROOT`."""
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
    """Yield a schema without its `$ref` and `allOf`, then, recursively, the schemas that `$ref` and
    `allOf` name."""
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
    """Merge a keyword into a schema. Returns False if it contradicts the schema's keywords."""
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
