"""Shows an answer in the terminal as the model writes it."""

from __future__ import annotations

import re
from typing import Final, Protocol

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

CONTROL_CHARACTERS: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
REASONING: Final = "dim italic"


class AnswerView(Protocol):
    """Shows one answer while it is generated."""

    def begin_text(self) -> None:
        """Begin a text on a line of its own."""

    def text(self, text: str) -> None:
        """Show the next piece of a text."""

    def reasoning(self, text: str) -> None:
        """Show the next piece of the model's reasoning."""

    def end_reasoning(self) -> None:
        """End the reasoning."""

    def pause(self) -> None:
        """Show all text so far, because other output follows."""

    def stop(self) -> None:
        """Show all text so far of an answer that was interrupted."""

    def end(self) -> None:
        """End the answer."""


class PlainView:
    """Shows an answer as the model writes it, on a terminal without control characters."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._in_line = False  # whether the last line of the output has text of the answer

    def begin_text(self) -> None:
        if self._in_line:
            self._write("\n", None)
            self._in_line = False

    def text(self, text: str) -> None:
        self._in_line = not text.endswith("\n")
        self._write(text, None)

    def reasoning(self, text: str) -> None:
        self._write(text, REASONING)

    def end_reasoning(self) -> None:
        self._write("\n\n", None)

    def pause(self) -> None:
        self.begin_text()

    def stop(self) -> None:
        pass  # all text is shown

    def end(self) -> None:
        self._write("\n", None)

    def _write(self, text: str, style: str | None) -> None:
        """Write text. Does not use rich's markup, which would replace tabs and emoji names."""
        if self._console.is_terminal:
            text = CONTROL_CHARACTERS.sub("", text)
        segment = Segment(text, Style.parse(style) if style else None)
        self._console.print(Segments([segment]), soft_wrap=True)
