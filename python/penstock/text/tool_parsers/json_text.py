"""Reads JSON text while the model writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from penstock.text.tool_parsers.stream_reader import Malformed, Reader, StreamRead

CLOSING: Final = {"{": "}", "[": "]"}
PLAIN: Final = frozenset(" \t\r\n,:+-.0123456789aeEflnrstu")
"""Characters other than brackets and quotes that may appear outside of strings."""
MAX_STRING_CHARS: Final = 1 << 20


def dump(value: Any) -> str:
    """Return JSON as models write it: spaces after colons and commas, no unnecessary escapes."""
    return json.dumps(value, ensure_ascii=False)


def escaped(text: str) -> str:
    """Return a text with JSON escapes, without quotes around it."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def pass_container(reader: Reader, emit: Callable[[str], None]) -> StreamRead[None]:
    """Read a JSON object or array and pass its text to `emit` as it arrives. The text is unchanged,
    except that raw control characters in strings are escaped.

    Raises Malformed if brackets do not match, a character may not appear there, or the text ends.
    """
    closing: list[str] = []
    in_string = escape = False
    while True:
        window = yield from reader.next_window()
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
            raise Malformed("brackets do not match")
        if not closing:
            return


def read_string(reader: Reader) -> StreamRead[str]:
    """Read a JSON string and return its decoded text. Raises Malformed for any other text."""
    yield from reader.expect('"')
    size = 0
    while True:
        window = yield from reader.next_window()
        at = window.find('"', size)
        while at >= 0 and _is_escaped(window, at):
            at = window.find('"', at + 1)
        if at >= 0:
            return _decoded(reader.advance(at + 1)[:-1])
        size = len(window)
        if size > MAX_STRING_CHARS or not (yield from reader.need(size + 1)):
            raise Malformed("unterminated string")


def skip_value(reader: Reader) -> StreamRead[None]:
    """Skip one JSON value. Raises Malformed."""
    first = yield from reader.peek()
    if first == '"':
        yield from read_string(reader)
    elif first and first in CLOSING:
        yield from pass_container(reader, lambda _: None)
    else:
        yield from read_word(reader)


def read_word(reader: Reader) -> StreamRead[str]:
    """Read a number or a name: letters, digits and `+-._`. Raises Malformed if neither follows."""
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
    r"""Whether a text contains a lone surrogate, e.g. from `\ud83d`, which UTF-8 cannot encode."""
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
        raise Malformed("lone surrogate")
    return text
