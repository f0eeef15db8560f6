"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence


class StopStrings:
    """Finds the stop string that is complete first, and holds back what could begin one.

    Among those complete at the same character the longest wins. So what is shown, and which string
    ended it, does not depend on how the text was cut into pieces. Stop strings are not empty. Cost:
    a scan for first letters while no stop string has begun, else one step of a Knuth-Morris-Pratt
    automaton per character and stop string. Its tables grow with what has been found: there may be
    many long stop strings, and many answers to one request.
    """

    __slots__ = ("_begun", "_failures", "_first_letters", "_held", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "a stop string is not empty"
        self._stops = tuple(stops)
        self._failures = [[0] for _ in self._stops]
        self._first_letters = re.compile(f"[{''.join({re.escape(s[0]) for s in stops})}]")
        self._begun = [0] * len(self._stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that may be shown now. Once `matched` is set, the answer is over."""
        if self.matched is not None:
            return ""
        start = 0
        if not self._held:
            first = self._first_letters.search(text)
            if first is None:
                return text
            start = first.start()
        begun, whole = self._begun, self._held + text
        for end in range(len(self._held) + start, len(whole)):
            longest = self._advance(whole[end])
            if longest is not None:
                self.matched = longest
                self._held = ""
                return whole[: end + 1 - len(longest)]
        shown = len(whole) - max(begun)
        self._held = whole[shown:]
        return whole[:shown]

    def finish(self) -> str:
        """What was held back; the text is over and no stop string came."""
        held, self._held = self._held, ""
        return held

    def _advance(self, letter: str) -> str | None:
        """One character; the longest stop string that it completes."""
        longest: str | None = None
        begun = self._begun
        for index, stop in enumerate(self._stops):
            state = begun[index]
            failures = self._failures[index]
            while state and stop[state] != letter:
                state = failures[state - 1]
            if stop[state] == letter:
                state += 1
                if state > len(failures):
                    _lengthen(failures, stop)
            begun[index] = state
            if state == len(stop) and (longest is None or state > len(longest)):
                longest = stop
        return longest


def _lengthen(failures: list[int], stop: str) -> None:
    """Add the next prefix of `stop` to its table: the length of the longest proper prefix of that
    prefix which is its suffix, too."""
    index, state = len(failures), failures[-1]
    while state and stop[state] != stop[index]:
        state = failures[state - 1]
    failures.append(state + (stop[state] == stop[index]))
