"""Reading a text that is still being written.

Parsers are generators over a Reader: they `yield` where they need more characters than there are.
Every method waits until what there is decides the question, so that what a parser finds never
depends on how the text was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]


class Malformed(Exception):
    """What is being read does not have the form it should have, or the text is over."""


class Reader:
    """A text of which the end is not known yet.

    `hold` marks a place to come back to with `rewind`; one place at a time. What lies before both
    the place held and the position is forgotten.
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
        """Characters read since the beginning."""
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
        """There will be no more text."""
        self._ended = True

    def hold(self) -> None:
        """Come back here on `rewind`."""
        self._held = self.position

    def release(self) -> None:
        self._held = None

    def rewind(self) -> None:
        assert self._held is not None
        self._at = self._held - self._dropped

    def window(self) -> str:
        """All characters that are there and not read yet."""
        return self._text[self._at :]

    def advance(self, count: int) -> str:
        """Read characters that are known to be there."""
        start = self._at
        self._at += count
        assert self._at <= len(self._text)
        return self._text[start : self._at]

    def back(self, count: int) -> None:
        """Unread characters that were read just now."""
        self._at -= count
        assert self._at >= 0

    def need(self, count: int) -> Reading[bool]:
        """Wait for so many characters; False where the text ends before."""
        while len(self._text) - self._at < count:
            if self._ended:
                return False
            yield
        return True

    def some(self) -> Reading[str]:
        """The window, once it is not empty. Raises Malformed at the end of the text."""
        if not (yield from self.need(1)):
            raise Malformed("the text ended")
        return self.window()

    def peek(self) -> Reading[str]:
        """The next character, unread; empty at the end of the text."""
        if (yield from self.need(1)):
            return self._text[self._at]
        return ""

    def spaces(self) -> Reading[None]:
        """Skip white space."""
        while (yield from self.peek()).isspace():
            self._at += 1

    def literal(self, *options: str) -> Reading[str]:
        """Read the longest of the options that comes next; empty, and nothing read, if none."""
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

    def expect(self, *options: str) -> Reading[str]:
        """As `literal`; raises Malformed where none comes."""
        found = yield from self.literal(*options)
        if not found:
            raise Malformed(f"expected {options[0]!r}")
        return found

    def upto(self, marks: tuple[str, ...], limit: int) -> Reading[tuple[str, str]]:
        """Read up to and with the first of the marks: (what is before it, the mark).

        Raises Malformed where none is within `limit` characters.
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


def pass_text(reader: Reader, marks: tuple[str, ...], emit: Callable[[str], None]) -> Reading[None]:
    """Hand on the text before the first of the marks as it comes, and read past the mark. Raises
    Malformed where the text ends without one; what may have been its beginning is then unread.
    """
    while True:
        window = yield from reader.some()
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
    """Length of the longest end of a text that may be the beginning of a mark (not all of it)."""
    most = 0
    for mark in marks:
        for length in range(min(len(mark) - 1, len(text)), most, -1):
            if text.endswith(mark[:length]):
                most = length
                break
    return most
