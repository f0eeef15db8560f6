"""N-gram speculative decoding (prompt lookup): draft tokens are copied from the sequence itself.

Text that copies (a summary, an edited file, repeated keys) repeats runs of its own tokens. The
draft consists of the tokens that followed the previous occurrence of the last three tokens. It is
proposed only if verifying it costs less than the steps that it saves; both the cost and the
acceptance rate are measured.
"""

from __future__ import annotations

from array import array
from typing import Final

NGRAM_LENGTH: Final = 3
"""Length of the n-gram that must match for a draft."""
MAX_DRAFT_TOKENS: Final = 15
"""Most draft tokens of one step, over all rows. A step may need this many additional rows of
logits."""
MAX_INDEXED_PER_STEP: Final = 4096
"""Most tokens that one step adds to n-gram indexes, over all rows, which takes 4 ms of the engine's
thread. A prompt of 100,000 tokens would take 100 ms at once. A prompt gets drafts only after all of
it has been indexed."""
MIN_INDEXED_PER_ROW: Final = 64
"""Tokens that each row may index in every step, so that a long prompt does not delay the drafts of
other rows."""
NGRAM_INDEX_BYTES: Final = 144
"""Most bytes of an n-gram index per token: two integers in a hash table that has just grown."""
_MARGIN: Final = 1.25
"""The expected gain of a draft token must exceed its cost by this factor."""
_FORGETTING: Final = 1 / 12
_PRIOR_WEIGHT: Final = 3
"""The initial acceptance rates count as this many observations, so that drafts stop after a few
rejections in text that does not copy. Later observations are weighted by `_FORGETTING`."""
_MATCHES: Final = ((16, 0.9), (8, 0.8), (5, 0.65), (NGRAM_LENGTH, 0.5))
"""Pairs (at least this many equal tokens before the draft, initial acceptance rate). Three equal
words already indicate a passage that is being copied."""
_PROBE_EVERY: Final = 24
"""While drafts do not pay, one in this many is still proposed, with one token, to notice a
change."""


class NgramIndex:
    """Maps each run of `NGRAM_LENGTH` tokens of one growing sequence to the position after the last
    occurrence of the run that is followed by a token."""

    def __init__(self) -> None:
        self._after: dict[int, int] = {}
        self._indexed = NGRAM_LENGTH

    def add(self, tokens: array[int], most: int) -> int:
        """Index up to `most` further tokens and return how many were indexed. `tokens`: the whole
        sequence so far."""
        after, begin = self._after, self._indexed
        ends = range(begin, min(begin + most, len(tokens)))
        for end in ends:
            after[_key(tokens, end)] = end
        self._indexed = begin + len(ends)
        return len(ends)

    def find(self, tokens: array[int], most: int) -> tuple[tuple[int, ...], int]:
        """Return up to `most` tokens that followed the previous occurrence of the last tokens, and
        how many tokens before them equal the last tokens (16 at most). Return no tokens unless all
        of `tokens` has been indexed."""
        known = len(tokens)
        if known != self._indexed:
            return (), 0
        start = self._after.get(_key(tokens, known))
        if start is None:
            return (), 0
        found = tokens[start : start + most]
        while 0 < len(found) < most:  # the match reaches the end of the text: repeat it
            found += found[: most - len(found)]
        return tuple(found), _same_before(tokens, start)


def _same_before(tokens: array[int], start: int) -> int:
    """Return how many tokens before position `start` equal the tokens at the end, 16 at most."""
    most = min(start, _MATCHES[0][0])
    count = NGRAM_LENGTH
    while count < most and tokens[start - count - 1] == tokens[len(tokens) - count - 1]:
        count += 1
    return count


def _key(tokens: array[int], end: int) -> int:
    return (tokens[end - 3] << 42) | (tokens[end - 2] << 21) | tokens[end - 1]


class NgramSpeculator:
    """The n-gram index of one sequence and the measured acceptance rates of its drafts."""

    def __init__(self) -> None:
        self._index = NgramIndex()
        self._acceptance = [rate for _, rate in _MATCHES]
        self._observed = [_PRIOR_WEIGHT] * len(_MATCHES)
        self._class = 0
        self._skipped = 0

    def index(self, tokens: array[int], most: int) -> int:
        """Index up to `most` further tokens and return how many were indexed. Call this before
        `propose`."""
        return self._index.add(tokens, most)

    def propose(self, tokens: array[int], most: int, token_cost: float) -> tuple[int, ...]:
        """Return up to `most` draft tokens for the end of `tokens`.

        `token_cost`: time that a further token adds to a step, divided by the time per token of the
        step without it. A draft token at distance i is expected to be accepted with the i-th power
        of the measured acceptance rate. Tokens are proposed as long as this probability exceeds
        `token_cost` with a margin.
        """
        draft, same = self._index.find(tokens, min(most, MAX_DRAFT_TOKENS))
        if not draft:
            return ()
        self._class = next(i for i, (least, _) in enumerate(_MATCHES) if same >= least)
        rate = self._acceptance[self._class]
        length, probability = 0, rate
        while length < len(draft) and probability > token_cost * _MARGIN:
            length += 1
            probability *= rate
        if length == 0:
            self._skipped += 1
            if self._skipped < _PROBE_EVERY:
                return ()
            self._skipped, length = 0, 1
        return draft[:length]

    def probabilities(self, length: int) -> list[float]:
        """Return the probability that each of the first `length` tokens of the last draft is
        accepted."""
        rate = self._acceptance[self._class]
        return [rate ** (distance + 1) for distance in range(length)]

    def learn(self, proposed: int, accepted: int) -> None:
        """Update the acceptance rate after a step that accepted `accepted` of `proposed` draft
        tokens. Tokens after the first rejected one do not count."""
        rate = self._acceptance[self._class]
        for outcome in [1.0] * accepted + [0.0] * (accepted < proposed):
            self._observed[self._class] += 1
            rate += max(_FORGETTING, 1.0 / self._observed[self._class]) * (outcome - rate)
        self._acceptance[self._class] = rate
