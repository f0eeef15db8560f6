"""Guesses at the next tokens of a sequence from its own, and how many of them are worth it.

Text that copies (a summary, an edited file, the same keys again) repeats runs of its own tokens:
what followed the last occurrence of the same three is the guess. A step computes and checks it for
less than the steps that it saves, or it is not made: what a guess costs and saves is measured.
"""

from __future__ import annotations

from array import array
from typing import Final

RUN: Final = 3
"""Tokens that must be the same for a guess."""
MAX_DRAFT: Final = 15
"""Guessed tokens of one step, for all its rows: a step has so many logits rows more."""
_MARGIN: Final = 1.25
"""A guessed token must be this many times worth what it costs."""
_FORGETTING: Final = 1 / 12
_FIRST_GUESS: Final = 0.6
_PROBE_EVERY: Final = 24
"""Where guesses do not pay, one of so many chances is taken, to see whether that has changed."""


class RunIndex:
    """Where each run of `RUN` tokens of one growing sequence was last followed by another token."""

    def __init__(self) -> None:
        self._after: dict[int, int] = {}
        self._indexed = RUN

    def guess(self, tokens: array[int], most: int) -> tuple[int, ...]:
        """Up to `most` tokens that followed the last tokens the time before. `tokens` is what it
        was at the call before, and perhaps more."""
        after = self._after
        for end in range(self._indexed, len(tokens)):
            after[_key(tokens, end)] = end
        self._indexed = max(self._indexed, len(tokens))
        if len(tokens) < RUN:
            return ()
        start = after.get(_key(tokens, len(tokens)))
        if start is None:
            return ()
        found = tokens[start : start + most]
        while 0 < len(found) < most:  # the guess runs into the end: it repeats itself
            found += found[: most - len(found)]
        return tuple(found)


def _key(tokens: array[int], end: int) -> int:
    first, second, third = tokens[end - RUN : end]
    return (first << 42) | (second << 21) | third


class Speculation:
    """Of one sequence: its index, and how often its guesses were right."""

    def __init__(self) -> None:
        self._index = RunIndex()
        self._right = _FIRST_GUESS
        self._passed = 0

    def draft(self, tokens: array[int], most: int, price: float) -> tuple[int, ...]:
        """Up to `most` tokens that may follow `tokens`. `price`: the time of a step's further token
        in parts of the time that a token takes without it. A guess at distance i is right with the
        i-th power of the measured probability, and made while that is above the price."""
        guess = self._index.guess(tokens, min(most, MAX_DRAFT))
        if not guess:
            return ()
        length, likely = 0, self._right
        while length < len(guess) and likely > price * _MARGIN:
            length += 1
            likely *= self._right
        if length == 0:
            self._passed += 1
            if self._passed < _PROBE_EVERY:
                return ()
            self._passed, length = 0, 1
        return guess[:length]

    def learn(self, drafted: int, confirmed: int) -> None:
        """`confirmed` of `drafted` guesses were right. Those after the first wrong one say
        nothing."""
        for _ in range(confirmed):
            self._right += _FORGETTING * (1.0 - self._right)
        if confirmed < drafted:
            self._right -= _FORGETTING * self._right
