"""Filters the text of an answer by its stop strings."""

from __future__ import annotations

from penstock.dialog import TokenLogprob
from penstock.generation.parts import Parts
from penstock.text import StopStrings


class StopFilter:
    """Passes the text of an answer on up to its first stop string, with the logprobs of its tokens.

    `pending`: (position of its first character in the stream, logprob) of tokens that are not shown
    yet. `keeps_all`: the answer is plain text, so tokens without text are shown at the end.
    """

    def __init__(self, parts: Parts, stops: tuple[str, ...], *, keeps_all: bool) -> None:
        self._parts = parts
        self._strings = stops
        self._stops = StopStrings(stops) if stops else None
        self._keeps_all = keeps_all
        self._spans: list[tuple[int, int]] = []  # (position, end) of text that stops may hold
        self.pending: list[tuple[int, TokenLogprob]] = []

    @property
    def matched(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.matched if self._stops is not None else None

    def say(self, text: str, at: int) -> None:
        """Add text at a position of the stream."""
        if self._stops is None:
            self._show(text, at)
            return
        self._spans.append((at, at + len(text)))
        self._show_spans(self._stops.push(text))

    def flush(self, *, last: bool = False) -> None:
        """No stop string can begin in what was said so far: other parts come between."""
        if self._stops is not None and self._spans:
            self._show_spans(self._stops.finish())
            if not last:
                self._stops = StopStrings(self._strings)
                self._spans.clear()
        if last and self._keeps_all and self.pending:
            self._parts.text("", tuple(logprob for _, logprob in self.pending))
            self.pending.clear()

    def _show_spans(self, shown: str) -> None:
        while shown:
            at, end = self._spans[0]
            count = min(end - at, len(shown))
            self._show(shown[:count], at)
            shown = shown[count:]
            self._spans[0] = (at + count, end)
            if at + count == end:
                del self._spans[0]

    def _show(self, text: str, at: int) -> None:
        logprobs: tuple[TokenLogprob, ...] = ()
        if self.pending:
            end = at + len(text)
            here = [entry for entry in self.pending if entry[0] < end]
            del self.pending[: len(here)]
            logprobs = tuple(logprob for start, logprob in here if start >= at)
        self._parts.text(text, logprobs)
