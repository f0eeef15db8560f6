"""The tokens that a row has seen: what presence, frequency and repetition penalties are of."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


class SeenState:
    """The distinct tokens of one sequence, and how often its answer has each."""

    def __init__(self, prompt: Iterable[int]) -> None:
        """`prompt`: the tokens that count as seen before the answer has any."""
        self._place = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        known = len(self._place)
        capacity = known + 64
        self._tokens = np.empty(capacity, np.int32)
        self._tokens[:known] = list(self._place)
        self._counts = np.zeros(capacity, np.int32)

    @property
    def tokens(self) -> Ints:
        """Each token once, in order of appearance."""
        return self._tokens[: len(self._place)]

    @property
    def counts(self) -> Ints:
        """How often the answer has each of `tokens`."""
        return self._counts[: len(self._place)]

    def append(self, token: int) -> None:
        """The next token of the answer."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._tokens):
            more = np.zeros(place, np.int32)
            self._tokens = np.concatenate([self._tokens, more])
            self._counts = np.concatenate([self._counts, more])
        self._tokens[place] = token
        self._counts[place] += 1
