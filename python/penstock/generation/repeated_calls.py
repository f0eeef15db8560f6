"""Finds repeated tool calls, which end the answer of a model that must call a function."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.text.tool_parsers import CallEnd, CallStart, ParsedArguments, ParserOutput


class RepeatedCallFilter:
    """Passes the output of a parser on until a tool call repeats an earlier call: equal function
    and equal arguments text.

    A call is held back while it may still become a repetition.

    `found`: whether a repetition was found.
    """

    def __init__(self) -> None:
        self.found = False
        self._made: list[tuple[str, str]] = []
        self._name = ""
        self._written: list[str] = []
        self._held: list[ParserOutput] = []
        self._alike: list[str] = []  # arguments of earlier calls that the held call may repeat

    def before_repeat(self, pieces: Sequence[ParserOutput]) -> list[ParserOutput]:
        """Add parser output and return the output that is certainly not part of a repetition.
        Returns nothing once a repetition was `found`."""
        passed: list[ParserOutput] = []
        for piece in pieces:
            if self.found:
                break
            match piece:
                case CallStart():
                    self._name, self._written = piece.name, []
                    self._alike = [given for name, given in self._made if name == piece.name]
                case ParsedArguments():
                    self._written.append(piece.text)
                    self._compare()
                case CallEnd():
                    self._end(piece)
            self._held.append(piece)
            if not self._alike:
                passed += self._held
                self._held = []
        return passed

    def _compare(self) -> None:
        if self._alike:
            written = "".join(self._written)
            self._alike = [given for given in self._alike if given.startswith(written)]

    def _end(self, end: CallEnd) -> None:
        written = "".join(self._written)
        self.found = end.whole and written in self._alike
        if not self.found:
            self._alike = []
            self._made.append((self._name, written))
