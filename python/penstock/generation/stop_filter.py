"""Cuts the text of an answer off at the first stop string."""

from __future__ import annotations

from penstock.dialog import TokenLogprob
from penstock.generation.parts import Parts
from penstock.text import StopStrings


class StopFilter:
    """Passes the text of an answer, with the logprobs of its tokens, to `parts` up to the first
    stop string.

    - `keeps_all`: the answer is plain text, so logprobs of tokens without text are also shown, at
      the end.
    - `pending`: logprobs that are not shown yet, as (position of the token's first character in the
      stream, logprob).
    """

    def __init__(self, parts: Parts, stops: tuple[str, ...], *, keeps_all: bool) -> None:
        self._parts = parts
        self._strings = stops
        self._stops = StopStrings(stops) if stops else None
        self._keeps_all = keeps_all
        self._spans: list[tuple[int, int]] = []  # (start, end) of text that may be held back
        self.pending: list[tuple[int, TokenLogprob]] = []

    @property
    def matched(self) -> str | None:
        """The stop string that ended the answer, None before one was found."""
        return self._stops.matched if self._stops is not None else None

    def say(self, text: str, at: int) -> None:
        """Add text that starts at position `at` of the stream."""
        if self._stops is None:
            self._show(text, at)
            return
        self._spans.append((at, at + len(text)))
        self._show_spans(self._stops.push(text))

    def flush(self, *, last: bool = False) -> None:
        """Show the text that is held back, since a stop string cannot continue across another part.
        `last`: the answer has ended."""
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
