"""Guesses at the next tokens of a sequence from its own, and how many of them are worth it.

Text that copies (a summary, an edited file, the same keys again) repeats runs of its own tokens:
what followed the last occurrence of the same three is the guess. A step computes and checks it for
less than the steps that it saves, or it is not made: what a guess costs and saves is measured.
"""

from __future__ import annotations

from array import array
from typing import Final

NGRAM_LENGTH: Final = 3
"""Tokens that must be the same for a guess."""
MAX_DRAFT_TOKENS: Final = 15
"""Guessed tokens of one step, for all its rows: a step has so many logits rows more."""
MAX_INDEXED_PER_STEP: Final = 4096
"""Tokens of one step that join indexes, for all its rows: 4 ms of the engine's thread, where a
prompt of 100,000 would take 100. Its guesses begin when all of it is indexed."""
MIN_INDEXED_PER_ROW: Final = 64
"""So many of a row may join in any case: a long prompt does not keep others from their guesses."""
NGRAM_INDEX_BYTES: Final = 144
"""What an index takes for each token at most: two integers, and a table that has just grown."""
_MARGIN: Final = 1.25
"""A guessed token must be this many times worth what it costs."""
_FORGETTING: Final = 1 / 12
_FIRST_TRUST: Final = 3
"""A first belief counts as so many guesses: text that does not copy is left after a few wrong ones,
and only then does the slow forgetting above hold."""
_MATCHES: Final = ((16, 0.9), (8, 0.8), (5, 0.65), (NGRAM_LENGTH, 0.5))
"""How likely a guess is right at first, by how many tokens before it are the same: a passage that
is being copied is told from three words that occur again."""
_PROBE_EVERY: Final = 24
"""Where guesses do not pay, one of so many chances is taken, to see whether that has changed."""


class NgramIndex:
    """Where each run of `NGRAM_LENGTH` tokens of one growing sequence was last followed by another
    token."""

    def __init__(self) -> None:
        self._after: dict[int, int] = {}
        self._indexed = NGRAM_LENGTH

    def add(self, tokens: array[int], most: int) -> int:
        """Index up to `most` tokens more, and return of how many. `tokens` is what it was at the
        call before, and perhaps more."""
        after, begin = self._after, self._indexed
        ends = range(begin, min(begin + most, len(tokens)))
        for end in ends:
            after[_key(tokens, end)] = end
        self._indexed = begin + len(ends)
        return len(ends)

    def find(self, tokens: array[int], most: int) -> tuple[tuple[int, ...], int]:
        """Up to `most` tokens that followed the last tokens the time before, and how many tokens
        before them are the same, as far as that matters. Nothing before all is indexed."""
        known = len(tokens)
        if known != self._indexed:
            return (), 0
        start = self._after.get(_key(tokens, known))
        if start is None:
            return (), 0
        found = tokens[start : start + most]
        while 0 < len(found) < most:  # the guess runs into the end: it repeats itself
            found += found[: most - len(found)]
        return tuple(found), _same_before(tokens, start)


def _same_before(tokens: array[int], start: int) -> int:
    """How many tokens before `start` are those at the end, up to the most that is asked for."""
    most = min(start, _MATCHES[0][0])
    count = NGRAM_LENGTH
    while count < most and tokens[start - count - 1] == tokens[len(tokens) - count - 1]:
        count += 1
    return count


def _key(tokens: array[int], end: int) -> int:
    return (tokens[end - 3] << 42) | (tokens[end - 2] << 21) | tokens[end - 1]


class NgramSpeculator:
    """Of one sequence: its index, and how often its guesses were right."""

    def __init__(self) -> None:
        self._index = NgramIndex()
        self._right = [right for _, right in _MATCHES]
        self._learned = [_FIRST_TRUST] * len(_MATCHES)
        self._class = 0
        self._passed = 0

    def index(self, tokens: array[int], most: int) -> int:
        """Take in up to `most` tokens more, and return how many; before a `propose`."""
        return self._index.add(tokens, most)

    def propose(self, tokens: array[int], most: int, token_cost: float) -> tuple[int, ...]:
        """Up to `most` tokens that may follow `tokens`. `token_cost`: the time of a step's further
        token
        in parts of the time that a token takes without it. A guess at distance i is right with the
        i-th power of the measured probability, and made while that is above the token_cost."""
        guess, same = self._index.find(tokens, min(most, MAX_DRAFT_TOKENS))
        if not guess:
            return ()
        self._class = next(i for i, (least, _) in enumerate(_MATCHES) if same >= least)
        right = self._right[self._class]
        length, likely = 0, right
        while length < len(guess) and likely > token_cost * _MARGIN:
            length += 1
            likely *= right
        if length == 0:
            self._passed += 1
            if self._passed < _PROBE_EVERY:
                return ()
            self._passed, length = 0, 1
        return guess[:length]

    def learn(self, proposed: int, accepted: int) -> None:
        """`accepted` of the tokens proposed last were right. Those after the first wrong one say
        nothing."""
        right = self._right[self._class]
        for was_right in [1.0] * accepted + [0.0] * (accepted < proposed):
            self._learned[self._class] += 1
            right += max(_FORGETTING, 1.0 / self._learned[self._class]) * (was_right - right)
        self._right[self._class] = right
