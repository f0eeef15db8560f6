"""Reads a text while the model writes it.

Parsers are generators that use a Reader: they `yield` to wait for more text. A method that returns
`StreamRead` waits until the available text determines its result, so that the result never depends
on how the text was split into pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
StreamRead = Generator[None, None, T]


class Malformed(Exception):
    """The text does not have the expected syntax, or ended early."""


class Reader:
    """A read position in a text that is still growing.

    `hold` saves the position and `rewind` returns to it; only one position can be held. Text before
    both the held position and the current position is dropped.
    """

    __slots__ = ("_at", "_dropped", "_ended", "_held", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._dropped = 0
        self._held: int | None = None
        self._ended = False

    @property
    def position(self) -> int:
        """Number of characters read since the beginning of the text."""
        return self._dropped + self._at

    @property
    def ended(self) -> bool:
        return self._ended

    def feed(self, text: str) -> None:
        at = self._at if self._held is None else min(self._at, self._held - self._dropped)
        self._text = self._text[at:] + text
        self._dropped += at
        self._at -= at

    def end(self) -> None:
        """Declare the text complete: no more text will be fed."""
        self._ended = True

    def hold(self) -> None:
        """Save the current position for `rewind`. It replaces the position saved before."""
        self._held = self.position

    def release(self) -> None:
        self._held = None

    def rewind(self) -> None:
        assert self._held is not None
        self._at = self._held - self._dropped

    def window(self) -> str:
        """Return all characters that have arrived and are not yet read."""
        return self._text[self._at :]

    def advance(self, count: int) -> str:
        """Read and return `count` characters, which must have arrived."""
        start = self._at
        self._at += count
        assert self._at <= len(self._text)
        return self._text[start : self._at]

    def unread(self, count: int) -> None:
        """Move the position back by `count` characters."""
        self._at -= count
        assert self._at >= 0

    def need(self, count: int) -> StreamRead[bool]:
        """Wait for `count` characters. Returns False if the text ends before them."""
        while len(self._text) - self._at < count:
            if self._ended:
                return False
            yield
        return True

    def next_window(self) -> StreamRead[str]:
        """Wait for text and return all unread text. Raises Malformed at the end of the text."""
        if not (yield from self.need(1)):
            raise Malformed("the text ended")
        return self.window()

    def peek(self) -> StreamRead[str]:
        """Return the next character without reading it, "" at the end of the text."""
        if (yield from self.need(1)):
            return self._text[self._at]
        return ""

    def spaces(self) -> StreamRead[None]:
        """Skip white space."""
        while (yield from self.peek()).isspace():
            self._at += 1

    def literal(self, *options: str) -> StreamRead[str]:
        """Read and return the longest option that the text continues with. Returns "" and reads
        nothing if the text continues with no option."""
        while True:
            window = self.window()
            found = max((o for o in options if window.startswith(o)), key=len, default="")
            open_still = any(
                len(o) > max(len(window), len(found)) and o.startswith(window) for o in options
            )
            if not open_still or self._ended:
                self._at += len(found)
                return found
            yield

    def expect(self, *options: str) -> StreamRead[str]:
        """Read and return the longest option that the text continues with. Raises Malformed if the
        text continues with no option."""
        found = yield from self.literal(*options)
        if not found:
            raise Malformed(f"expected {options[0]!r}")
        return found

    def read_until(self, marks: tuple[str, ...], limit: int) -> StreamRead[tuple[str, str]]:
        """Read up to and including the first mark in the text. Returns (text before the mark,
        mark).

        Raises Malformed if no mark starts within `limit` characters.
        """
        while True:
            window = self.window()
            places = [(at, -len(m), m) for m in marks if (at := window.find(m)) >= 0]
            if places:
                at, _, mark = min(places)
                if at > limit:
                    raise Malformed("too long")
                self._at += at + len(mark)
                return window[:at], mark
            if self._ended or len(window) > limit + max(map(len, marks)):
                raise Malformed(f"expected {marks[0]!r}")
            yield


def pass_text(
    reader: Reader, marks: tuple[str, ...], emit: Callable[[str], None]
) -> StreamRead[None]:
    """Pass the text before the first mark to `emit` as it arrives, and read past the mark.

    Raises Malformed if the text ends without a mark. Text at the end that may be the beginning of a
    mark is then still unread.
    """
    while True:
        window = yield from reader.next_window()
        places = [(at, -len(m)) for m in marks if (at := window.find(m)) >= 0]
        if places:
            at, length = min(places)
            emit(reader.advance(at))
            reader.advance(-length)
            return
        kept = held_back(window, marks)
        if kept < len(window):
            emit(reader.advance(len(window) - kept))
        if not (yield from reader.need(kept + 1)):
            raise Malformed("the text ended")


def held_back(text: str, marks: tuple[str, ...]) -> int:
    """Return the length of the longest suffix of a text that may be the beginning of a mark."""
    most = 0
    for mark in marks:
        for length in range(min(len(mark) - 1, len(text)), most, -1):
            if text.endswith(mark[:length]):
                most = length
                break
    return most
