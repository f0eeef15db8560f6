"""Finds numbers in a JSON schema that the grammar library would round.

The library stores numbers as doubles. An integer that a double cannot represent would become a
different integer in the answer. The JSON decoder has already rounded an integer of more than 64
bits to a double.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.grammar.json_schema.subschemas import map_subschemas, subschemas
from penstock.grammar.json_schema.value_types import type_of, types_of

_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MAX_DEPTH: Final = 200
_MAX_EXACT: Final = 2**53
"""Up to this magnitude, every integer is exactly a double."""
_MAX_DECODED: Final = 2**63
"""Up to this magnitude, the JSON decoder keeps all digits of an integer."""


def inexact_number_of(schema: Any, place: str = "", depth: int = 0) -> tuple[str, str] | None:
    """Return (JSON pointer, reason) for the first number in a schema that would be rounded, or
    None. `place`: JSON pointer to `schema`."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    for keyword, number in _inexact(schema):
        return place, f"`{keyword}` cannot be enforced exactly for {number}"
    parts = (
        inexact_number_of(part, f"{place}/{step}", depth + 1) for step, part in subschemas(schema)
    )
    return next((found for found in parts if found is not None), None)


def without_inexact_numbers(schema: Any, depth: int = 0) -> Any:
    """Return a schema without keywords whose numbers would be rounded. `type` with the types of the
    values replaces `enum` and `const`."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    kept = dict(schema)
    for keyword, _ in _inexact(schema):
        if (values := kept.pop(keyword, None)) is not None and keyword in ("enum", "const"):
            listed = values if keyword == "enum" else [values]
            kept.setdefault("type", sorted(set(map(type_of, listed))))
    return map_subschemas(kept, lambda part: without_inexact_numbers(part, depth + 1))


def _inexact(schema: dict[str, Any]) -> Iterator[tuple[str, int | float]]:
    """Yield (keyword, number) for each keyword at the top of a schema whose number would be
    rounded."""
    for keyword in ("const", "enum"):
        number = next((n for n in _numbers(schema.get(keyword)) if not _is_exact(n)), None)
        if number is not None:
            yield keyword, number
    is_integer = types_of(schema, {}) == {"integer"}
    for keyword in _BOUNDS:
        bound = schema.get(keyword)
        if not isinstance(bound, int | float) or isinstance(bound, bool):
            continue
        if not _is_exact_bound(keyword, bound, is_integer):
            yield keyword, bound


def _is_exact(number: float) -> bool:
    if type(number) is float:
        return abs(number) < _MAX_DECODED or not number.is_integer()
    return abs(number) <= _MAX_DECODED and float(number) == number


def _is_exact_bound(keyword: str, number: float, is_integer: bool) -> bool:
    if abs(number) <= _MAX_EXACT:
        return True
    if not is_integer:  # the library compares digits with the double's shortest text
        return type(number) is float
    return _is_exact(number) and not keyword.startswith("exclusive")


def _numbers(value: Any) -> Iterator[int | float]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if type(value) in (int, float):
            yield value
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
