"""Collects the output of the answer parser and drops white space around calls and reasoning."""

from __future__ import annotations

from penstock.text.tool_parsers.parser_output import ParsedReasoning, ParsedText, ParserOutput


class OutputBuilder:
    """Collects parser output until `take` returns it.

    White space in text is dropped after reasoning and calls. White space at both ends of the
    reasoning is dropped.

    `keeps_spaces`: white space at the end of text is held back, and dropped if a call follows.
    """

    def __init__(self, *, keeps_spaces: bool) -> None:
        self._pieces: list[ParserOutput] = []
        self._keeps_spaces = keeps_spaces
        self._held = ""
        self._after_mark = False
        self._held_reasoning = ""
        self._reasoning_started = False
        self.reasoning = False
        """Whether the text that is read now is reasoning."""

    def take(self) -> list[ParserOutput]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def add(self, piece: ParserOutput) -> None:
        """Add a part of a call. White space before and after the call is dropped."""
        self._held = ""
        self._after_mark = True
        self._pieces.append(piece)

    def add_text(self, text: str, end: int) -> None:
        """Add text of the answer. `end`: the position in the stream after this text."""
        text = self._held + text
        self._held = ""
        if self._after_mark:
            text = text.lstrip()
            if not text:
                return
            self._after_mark = False
        if self._keeps_spaces:
            shown = text.rstrip()
            self._held = text[len(shown) :]
            text, end = shown, end - len(self._held)
        if text:
            self._pieces.append(ParsedText(text, end - len(text)))

    def begin_reasoning(self) -> None:
        self.reasoning = True
        self._reasoning_started = False
        self._held_reasoning = ""

    def add_reasoning(self, text: str) -> None:
        text = self._held_reasoning + text
        if not self._reasoning_started:
            text = text.lstrip()
        shown = text.rstrip()
        self._held_reasoning = text[len(shown) :]
        if shown:
            self._reasoning_started = True
            self._pieces.append(ParsedReasoning(shown))

    def end_reasoning(self) -> None:
        self.reasoning = False
        self._held_reasoning = ""
        self._after_mark = True
        self._held = ""

    def finish(self, end: int) -> None:
        """End the text. White space that is held back becomes text, unless it follows a call.
        `end`: the position at the end of the stream."""
        held, self._held = self._held, ""
        if held and not self._after_mark:
            self._pieces.append(ParsedText(held, end - len(held)))
