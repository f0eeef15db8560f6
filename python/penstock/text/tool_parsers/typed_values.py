"""Converts argument values that a model writes as plain text to JSON of an allowed type."""

from __future__ import annotations

import ast
import json
from typing import Any, Final

from penstock.grammar.json_schema.value_types import type_of
from penstock.text.tool_parsers.json_text import escaped, has_surrogate

MAX_LITERAL_CHARS: Final = 1 << 16
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}


def to_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON of a value that a model wrote as text. `types`: the JSON types allowed.

    If the text is JSON or a Python literal of an allowed type, the result is that value. If its
    type is not allowed, the result is a string if strings are allowed, else the value. Any other
    text becomes a string.
    """
    plain = _WORDS.get(text.strip(), text.strip())
    found = _parsed(plain)
    if found is None:
        return f'"{escaped(text)}"'
    value, written = found
    kind = type_of(value)
    allowed = kind in types or (kind == "integer" and "number" in types)
    return written if allowed or "string" not in types else f'"{escaped(text)}"'


def _parsed(text: str) -> tuple[Any, str] | None:
    """Return (value, its JSON), or None if the text is neither JSON nor a Python literal."""
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
