"""Converts Python literals to JSON while the model writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from penstock.text.tool_parsers.json_text import escaped
from penstock.text.tool_parsers.stream_reader import Malformed, Reader, StreamRead

Emit = Callable[[str], None]

MAX_DEPTH: Final = 64
WORDS: Final = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_CODES: Final = {"x": 2, "u": 4, "U": 8}


def python_value(reader: Reader, emit: Emit, depth: int = 0) -> StreamRead[None]:
    """Read one Python literal and emit its JSON. Raises Malformed for any other text."""
    if depth > MAX_DEPTH:
        raise Malformed("nested too deeply")
    first = yield from reader.peek()
    if first in ("'", '"'):
        yield from _string(reader, emit)
    elif first in ("[", "("):
        yield from _list(reader, emit, depth)
    elif first == "{":
        yield from _dict(reader, emit, depth)
    else:
        emit(as_json((yield from read_token(reader))))


def read_token(reader: Reader) -> StreamRead[str]:
    """Read a number or a word. Raises Malformed if neither follows."""
    token = ""
    while (char := (yield from reader.peek())) and (char.isalnum() or char in "+-._"):
        token += reader.advance(1)
    if not token:
        raise Malformed("expected a value")
    return token


def as_json(token: str) -> str:
    """Return the JSON of a number or constant. Raises Malformed for any other token."""
    if token in WORDS:
        return WORDS[token]
    try:
        digits = token.replace("_", "").lstrip("+-")
        value = int(token) if digits.isdigit() else float(token)
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise Malformed(f"{token!r} is not a value") from error


def _string(reader: Reader, emit: Emit) -> StreamRead[None]:
    quote = yield from reader.expect('"""', "'''", '""', "''", '"', "'")
    if len(quote) == 2:
        emit('""')
        return
    emit('"')
    while True:
        ended, text = yield from _run(reader, quote)
        emit(escaped(text))
        if ended:
            break
    emit('"')


def _run(reader: Reader, quote: str) -> StreamRead[tuple[bool, str]]:
    """Read the next part of a string. Returns (whether the string ended, the part's text)."""
    window = yield from reader.next_window()
    plain = next((i for i, char in enumerate(window) if char in ("\\", quote[0])), len(window))
    if plain:
        return False, reader.advance(plain)
    if window[0] == "\\":
        return False, (yield from _escape(reader))
    if (yield from reader.literal(quote)):
        return True, ""
    return False, reader.advance(1)


def _escape(reader: Reader) -> StreamRead[str]:
    if not (yield from reader.need(2)):
        raise Malformed("the text ended")
    letter = reader.window()[1]
    if letter not in _CODES:
        reader.advance(2)
        return _ESCAPES.get(letter, letter if letter in "\\'\"" else "\\" + letter)
    code = yield from _code(reader, 2 + _CODES[letter])
    # A character outside the BMP may be written as a surrogate pair, as in JSON.
    if 0xD800 <= code < 0xDC00 and (yield from reader.literal("\\u")):
        reader.unread(2)
        low = yield from _code(reader, 2 + _CODES["u"])
        if 0xDC00 <= low < 0xE000:
            return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise Malformed("not an escape")
    return chr(code)


def _code(reader: Reader, size: int) -> StreamRead[int]:
    """Read a hexadecimal escape of `size` characters and return its code point."""
    if not (yield from reader.need(size)):
        raise Malformed("the text ended")
    try:
        code = int(reader.window()[2:size], 16)
    except ValueError as error:
        raise Malformed("not an escape") from error
    reader.advance(size)
    return code


def _list(reader: Reader, emit: Emit, depth: int) -> StreamRead[None]:
    close = "]" if reader.advance(1) == "[" else ")"
    delimiter = "["
    while True:
        yield from reader.spaces()
        if (yield from reader.literal(close)):
            break
        emit(delimiter)
        yield from python_value(reader, emit, depth + 1)
        yield from _separator(reader, close)
        delimiter = ", "
    emit("[]" if delimiter == "[" else "]")


def _dict(reader: Reader, emit: Emit, depth: int) -> StreamRead[None]:
    reader.advance(1)
    delimiter = "{"
    while True:
        yield from reader.spaces()
        if (yield from reader.literal("}")):
            break
        emit(delimiter)
        key: list[str] = []
        yield from python_value(reader, key.append, depth + 1)
        name = "".join(key)
        yield from reader.spaces()
        yield from reader.expect(":")
        yield from reader.spaces()
        emit((name if name.startswith('"') else f'"{escaped(name)}"') + ": ")
        yield from python_value(reader, emit, depth + 1)
        yield from _separator(reader, "}")
        delimiter = ", "
    emit("{}" if delimiter == "{" else "}")


def _separator(reader: Reader, close: str) -> StreamRead[None]:
    """Read a comma, unless the container ends."""
    yield from reader.spaces()
    if (yield from reader.peek()) != close:
        yield from reader.expect(",")
