"""Where parsers put text: white space around calls and reasoning belongs to neither."""

from __future__ import annotations

from penstock.text.tool_parsers.parser_output import ParsedReasoning, ParsedText, ParserOutput


class OutputBuilder:
    """The pieces found so far; `take` empties it.

    Text: white space is kept back while something may follow that makes it no part of the answer
    (`keeps_spaces`), and dropped after reasoning and calls. Reasoning: stripped on both sides.
    """

    def __init__(self, *, keeps_spaces: bool) -> None:
        self._pieces: list[ParserOutput] = []
        self._keeps_spaces = keeps_spaces
        self._held = ""
        self._after_mark = False
        self._thought = ""
        self._thinking = False
        self.reasoning = False
        """Whether reasoning is being written: what is read now counts as such."""

    def take(self) -> list[ParserOutput]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def add(self, piece: ParserOutput) -> None:
        """Anything of a call; white space before and after it is dropped."""
        self._held = ""
        self._after_mark = True
        self._pieces.append(piece)

    def say(self, text: str, end: int) -> None:
        """Text of the answer; `end`: the position in the stream after it."""
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

    def begin_thought(self) -> None:
        self.reasoning = True
        self._thinking = False
        self._thought = ""

    def think(self, text: str) -> None:
        text = self._thought + text
        if not self._thinking:
            text = text.lstrip()
        shown = text.rstrip()
        self._thought = text[len(shown) :]
        if shown:
            self._thinking = True
            self._pieces.append(ParsedReasoning(shown))

    def end_thought(self) -> None:
        self.reasoning = False
        self._thought = ""
        self._after_mark = True
        self._held = ""

    def finish(self, end: int) -> None:
        """The text is over: what was held back is part of the answer, if it is anything's."""
        held, self._held = self._held, ""
        if held and not self._after_mark:
            self._pieces.append(ParsedText(held, end - len(held)))
