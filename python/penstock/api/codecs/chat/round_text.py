"""Joins the texts of several rounds, which a chat answer has in one `content`.

An empty line separates a text from the text before it if server tools were called in between and
the earlier text does not end in a line break.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from penstock.dialog import Part, PartEnded, PartStarted, Text, TextDelta, ToolRun

SEPARATOR: Final = "\n\n"


def text_of(parts: Iterable[Part | ToolRun]) -> str:
    """Return the text of a choice, with the texts of different rounds separated."""
    text, called = "", False
    for part in parts:
        if isinstance(part, ToolRun):
            called = True
        elif isinstance(part, Text) and part.text:
            separate = called and text and not text.endswith("\n")
            text += SEPARATOR + part.text if separate else part.text
            called = False
    return text


class RoundText:
    """Separates the texts of a stream as `text_of` does.

    A call of a server tool may be reported after a later part of its round has started. But parts
    and calls are numbered together without gaps, so that a skipped index is a call.

    - `waiting`: choices whose next text must be separated.
    """

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self._started: Counter[int] = Counter()  # choice -> number of parts
        self._calls: Counter[int] = Counter()  # choice -> number of calls before its last text
        self._last: dict[int, str] = {}  # choice -> last character of its text

    def part_started(self, event: PartStarted) -> None:
        calls = event.part - self._started[event.choice]
        self._started[event.choice] += 1
        if event.kind != "text" or calls <= self._calls[event.choice]:
            return
        if self._last.get(event.choice, "\n") != "\n":
            self.waiting.add(event.choice)

    def part_ended(self, event: PartEnded) -> None:
        if isinstance(event.value, Text) and event.value.text:
            self._last[event.choice] = event.value.text[-1]
            self._calls[event.choice] = event.part + 1 - self._started[event.choice]

    def separated(self, event: TextDelta) -> str:
        """Return the text of a delta, after the separator if it must be separated."""
        if not event.text or event.choice not in self.waiting:
            return event.text
        self.waiting.remove(event.choice)
        return SEPARATOR + event.text
