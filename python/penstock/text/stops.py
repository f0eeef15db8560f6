"""Finds stop strings in a text that arrives in pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence


class StopStrings:
    """Finds the first stop string in a text and holds back text that may be the start of one.

    If several stop strings end at the same character, the longest wins. So the shown text and the
    stop string do not depend on how the text was split into pieces. Stop strings must not be empty.

    `matched`: the stop string that was found, None before.

    Cost: a scan for first letters while no stop string has started, otherwise one step of a
    Knuth-Morris-Pratt automaton per character and stop string. The automaton's tables are built
    only as far as text matched, because a request may have many long stop strings and many answers.
    """

    __slots__ = ("_failures", "_first_letters", "_held", "_progress", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "a stop string is empty"
        self._stops = tuple(stops)
        self._failures = [[0] for _ in self._stops]
        self._first_letters = re.compile(f"[{''.join({re.escape(s[0]) for s in stops})}]")
        self._progress = [0] * len(self._stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Return the text that may be shown now. Once `matched` is set, the answer has ended."""
        if self.matched is not None:
            return ""
        start = 0
        if not self._held:
            first = self._first_letters.search(text)
            if first is None:
                return text
            start = first.start()
        progress, whole = self._progress, self._held + text
        for end in range(len(self._held) + start, len(whole)):
            longest = self._advance(whole[end])
            if longest is not None:
                self.matched = longest
                self._held = ""
                return whole[: end + 1 - len(longest)]
        shown = len(whole) - max(progress)
        self._held = whole[shown:]
        return whole[:shown]

    def finish(self) -> str:
        """Return the text that is held back. To be called when the text ends without a stop
        string."""
        held, self._held = self._held, ""
        return held

    def _advance(self, letter: str) -> str | None:
        """Read one character. Returns the longest stop string that ends with it, or None."""
        longest: str | None = None
        progress = self._progress
        for index, stop in enumerate(self._stops):
            state = progress[index]
            failures = self._failures[index]
            while state and stop[state] != letter:
                state = failures[state - 1]
            if stop[state] == letter:
                state += 1
                if state > len(failures):
                    _lengthen(failures, stop)
            progress[index] = state
            if state == len(stop) and (longest is None or state > len(longest)):
                longest = stop
        return longest


def _lengthen(failures: list[int], stop: str) -> None:
    """Append the entry of the next prefix of `stop` to its Knuth-Morris-Pratt failure table: the
    length of the longest proper prefix of that prefix that is also its suffix."""
    index, state = len(failures), failures[-1]
    while state and stop[state] != stop[index]:
        state = failures[state - 1]
    failures.append(state + (stop[state] == stop[index]))
