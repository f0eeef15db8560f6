"""Searches and changes the strings in the nested dictionaries and lists that a template renders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.base.errors import InvalidRequest

FIRST_MARK: Final = 0x100000
LAST_MARK: Final = 0x10FFFD
"""First and last private-use code point. A code point of this range that is not in the request's
text is inserted into control tokens written there, so that they are not recognized."""


def unused_mark(inputs: Any) -> str:
    """Return a private-use code point that no string in `inputs` contains. Raises InvalidRequest if
    they contain all."""
    used: set[str] = set()

    def note(text: str) -> bool:
        used.update(text)
        return False

    any_text(inputs, note)
    for code in range(FIRST_MARK, LAST_MARK + 1):
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequest("the messages use every private code point", field="messages")


def any_text(value: Any, test: Callable[[str], object]) -> bool:
    """Whether any string in nested dictionaries and lists, including keys, passes a test."""
    if isinstance(value, str):
        return bool(test(value))
    if isinstance(value, dict):
        for name, item in value.items():
            if test(name) or any_text(item, test):
                return True
    elif isinstance(value, list | tuple):
        for item in value:
            if any_text(item, test):
                return True
    return False


def map_text(value: Any, change: Callable[[str], str]) -> Any:
    """Apply `change` to every string in nested dictionaries and lists, including keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {map_text(k, change): map_text(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [map_text(item, change) for item in value]
    return value
