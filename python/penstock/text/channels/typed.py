"""Values that a model writes as plain text, as JSON of the types that a schema asks for."""

from __future__ import annotations

import ast
import json
from typing import Any, Final

from penstock.text.channels.json_text import escaped, has_surrogate

ANY: Final = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
MAX_LITERAL_CHARS: Final = 1 << 16
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_MAX_DEPTH: Final = 16


def types_of(schema: Any, root: dict[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says so at its top. `root` resolves
    references."""
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
    """The JSON type of a decoded value."""
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
    """What a reference within a schema names, a JSON pointer behind `#`; {} or None where that is
    nothing."""
    if not reference.startswith("#"):
        return {}
    found: Any = root
    for step in reference[1:].split("/")[1:]:
        if isinstance(found, list) and step in map(str, range(len(found))):
            found = found[int(step)]
        else:
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
    return found


def to_json(text: str, types: frozenset[str]) -> str:
    """The JSON of a value written as text: of a type that is allowed if it can be read so, else a
    string."""
    plain = _WORDS.get(text.strip(), text.strip())
    found = _parsed(plain)
    if found is None:
        return f'"{escaped(text)}"'
    value, written = found
    kind = type_of(value)
    allowed = kind in types or (kind == "integer" and "number" in types)
    return written if allowed or "string" not in types else f'"{escaped(text)}"'


def _parsed(text: str) -> tuple[Any, str] | None:
    """(value, its JSON); None where the text is neither JSON nor a Python literal."""
    try:
        return json.loads(text, parse_constant=_refuse), text
    except (ValueError, RecursionError):
        pass
    if text[:1] not in ("{", "[", "(") or len(text) > MAX_LITERAL_CHARS:
        return None
    try:
        value = ast.literal_eval(text)
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return None if has_surrogate(written) else (value, written)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _refuse(name: str) -> Any:
    raise ValueError(name)
