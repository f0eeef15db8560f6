"""Finds numbers in a JSON schema that the grammar library would not keep to their last digit.

It holds numbers as doubles. An integer that no double is would be another one in the answer. So
would one of more than 64 bits that arrives here as a double already: its digits are lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.grammar.json_schema.value_types import type_of, types_of

_NAMED: Final = ("$defs", "definitions", "properties", "patternProperties")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties")
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MAX_DEPTH: Final = 200
_ALL_KEPT: Final = 2**53
"""Up to here every integer is a double, and so are its neighbours."""
_DIGITS_KNOWN: Final = 2**63


def inexact_number_of(
    schema: Any, place: str = "", depth: int = 0
) -> tuple[str, str, int | float] | None:
    """(place of a part as a JSON pointer, keyword, number) of the first number that would not be
    kept; None if all are."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    for keyword, number in _lost(schema):
        return place, keyword, number
    parts = (inexact_number_of(part, f"{place}/{step}", depth + 1) for step, part in _parts(schema))
    return next((found for found in parts if found is not None), None)


def without_inexact_numbers(schema: Any, depth: int = 0) -> Any:
    """The same schema without the keywords that would be kept inexactly; listed values leave their
    types behind."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    kept = dict(schema)
    for keyword, _ in _lost(schema):
        if (values := kept.pop(keyword, None)) is not None and keyword in ("enum", "const"):
            listed = values if keyword == "enum" else [values]
            kept.setdefault("type", sorted(set(map(type_of, listed))))
    for key, value in kept.items():
        if key in _NAMED and isinstance(value, dict):
            kept[key] = {
                name: without_inexact_numbers(part, depth + 1) for name, part in value.items()
            }
        elif key in _LISTED and isinstance(value, list):
            kept[key] = [without_inexact_numbers(part, depth + 1) for part in value]
        elif key in _SINGLE:
            kept[key] = without_inexact_numbers(value, depth + 1)
    return kept


def _lost(schema: dict[str, Any]) -> Iterator[tuple[str, int | float]]:
    """(keyword, number) of what one part says itself."""
    for keyword in ("const", "enum"):
        number = next((n for n in _numbers(schema.get(keyword)) if not _is_kept(n)), None)
        if number is not None:
            yield keyword, number
    is_integer = types_of(schema, {}) == {"integer"}
    for keyword in _BOUNDS:
        bound = schema.get(keyword)
        if not isinstance(bound, int | float) or isinstance(bound, bool):
            continue
        if not _is_kept_bound(keyword, bound, is_integer):
            yield keyword, bound


def _is_kept(number: float) -> bool:
    if type(number) is float:
        return abs(number) < _DIGITS_KNOWN or not number.is_integer()
    return abs(number) <= _DIGITS_KNOWN and float(number) == number


def _is_kept_bound(keyword: str, number: float, is_integer: bool) -> bool:
    if abs(number) <= _ALL_KEPT:
        return True
    if not is_integer:  # compared digit by digit, as the shortest text of the double
        return type(number) is float
    return _is_kept(number) and not keyword.startswith("exclusive")


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


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in _NAMED:
        if isinstance(named := schema.get(key), dict):
            for name, part in named.items():
                yield f"{key}/{name.replace('~', '~0').replace('/', '~1')}", part
    for key in _LISTED:
        if isinstance(listed := schema.get(key), list):
            for index, part in enumerate(listed):
                yield f"{key}/{index}", part
    for key in _SINGLE:
        yield key, schema.get(key)
