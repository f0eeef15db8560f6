"""JSON text that is still being written: handed on as it comes, or read whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from penstock.text.tool_parsers.stream_reader import Malformed, Reader, Reading

CLOSING: Final = {"{": "}", "[": "]"}
PLAIN: Final = frozenset(" \t\r\n,:+-.0123456789aeEflnrstu")
"""What may stand outside of strings beside brackets."""
MAX_STRING_CHARS: Final = 1 << 20


def dump(value: Any) -> str:
    """JSON as models write it: spaces after colons and commas, no escapes that need not be."""
    return json.dumps(value, ensure_ascii=False)


def escaped(text: str) -> str:
    """A text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def pass_container(reader: Reader, emit: Callable[[str], None]) -> Reading[None]:
    """Read an object or an array and hand on its text, verbatim but for raw control characters in
    strings, which are escaped. Raises Malformed where brackets do not fit.
    """
    closing: list[str] = []
    in_string = escape = False
    while True:
        window = yield from reader.some()
        run: list[str] = []
        broken = False
        for char in window:
            if in_string:
                if escape:
                    escape = False
                elif char == "\\":
                    escape = True
                elif char == '"':
                    in_string = False
                run.append(char if char >= " " else escaped(char))
                continue
            if char == '"':
                in_string = True
            elif char in CLOSING:
                closing.append(CLOSING[char])
            elif char in "}]":
                broken = closing.pop() != char
            else:
                broken = char not in PLAIN
            if broken:
                break
            run.append(char)
            if not closing:
                break
        reader.advance(len(run))
        emit("".join(run))
        if broken:
            raise Malformed("brackets do not fit")
        if not closing:
            return


def read_string(reader: Reader) -> Reading[str]:
    """A JSON string, decoded. Raises Malformed."""
    yield from reader.expect('"')
    size = 0
    while True:
        window = yield from reader.some()
        at = window.find('"', size)
        while at >= 0 and _is_escaped(window, at):
            at = window.find('"', at + 1)
        if at >= 0:
            return _decoded(reader.advance(at + 1)[:-1])
        size = len(window)
        if size > MAX_STRING_CHARS or not (yield from reader.need(size + 1)):
            raise Malformed("a string without an end")


def skip_value(reader: Reader) -> Reading[None]:
    """Read past any JSON value."""
    first = yield from reader.peek()
    if first == '"':
        yield from read_string(reader)
    elif first and first in CLOSING:
        yield from pass_container(reader, lambda _: None)
    else:
        yield from read_word(reader)


def read_word(reader: Reader) -> Reading[str]:
    """A number or a name: letters, digits and `+-._`. Raises Malformed where none comes."""
    word = ""
    while (char := (yield from reader.peek())) and (char.isalnum() or char in "+-._"):
        word += reader.advance(1)
    if not word:
        raise Malformed("expected a value")
    return word


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def has_surrogate(text: str) -> bool:
    """Whether half a character is in a text, as `\\ud83d` alone gives one: no encoding takes it."""
    return any("\ud800" <= char <= "\udfff" for char in text)


def _is_escaped(text: str, at: int) -> bool:
    before = at
    while before and text[before - 1] == "\\":
        before -= 1
    return (at - before) % 2 == 1


def _decoded(inner: str) -> str:
    try:
        text = str(json.loads(f'"{inner}"', strict=False))
    except ValueError as error:
        raise Malformed("not a JSON string") from error
    if has_surrogate(text):
        raise Malformed("half a character")
    return text
