"""Measured acceptance rates of draft tokens, and the length of a draft that pays.

A draft token at distance i (0: the first) is accepted only if all tokens before it are. Its rate is
the share of accepted tokens among those that were verified, which are the tokens up to the first
rejected one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from typing import Final

INITIAL_RATE: Final = 0.7
"""The assumed acceptance rate of a source that has not been measured."""
LEAST_GAIN: Final = 1.05
"""Drafts begin if they are expected to make tokens this many times as fast. They go on until they
are expected to make them slower, so that noise does not switch them."""
_PRIOR_WEIGHT: Final = 4.0
"""The prior rate counts as this many observations."""


class AcceptanceRates:
    """The acceptance rate of one source of draft tokens at each distance up to `most`.

    `prior(distance)`: the rate before any observation.
    `memory`: number of observations after which old ones are forgotten.
    """

    def __init__(self, most: int, prior: Callable[[int], float], memory: int) -> None:
        self._prior = prior
        self._kept = 1.0 - 1.0 / memory
        self._observed = [0.0] * most
        self._accepted = [0.0] * most

    def rate(self, distance: int) -> float:
        """Return the probability that the draft token at `distance` is accepted if all tokens
        before it are."""
        accepted = self._accepted[distance] + _PRIOR_WEIGHT * self._prior(distance)
        return accepted / (self._observed[distance] + _PRIOR_WEIGHT)

    def probabilities(self, most: int) -> list[float]:
        """Return the probability that each of the next `most` draft tokens is accepted."""
        return list(accumulate(map(self.rate, range(most)), mul))

    def learn(self, proposed: int, accepted: int) -> None:
        """Record that a step accepted `accepted` of `proposed` draft tokens."""
        for distance in range(min(accepted + 1, proposed)):
            self._observed[distance] = self._kept * self._observed[distance] + 1.0
            self._accepted[distance] *= self._kept
            self._accepted[distance] += distance < accepted


def rates_of_engine(most: int) -> AcceptanceRates:
    """Return the rates of a source over all sequences. A distance that was rarely reached is
    expected to have the rate of the distance before it."""

    def prior(distance: int) -> float:
        return INITIAL_RATE if distance == 0 else rates.rate(distance - 1)

    rates = AcceptanceRates(most, prior, memory=256)
    return rates


def speedup(probabilities: Sequence[float], cost: float) -> float:
    """Return how many times as fast tokens are expected with a draft whose tokens are accepted with
    these `probabilities`. `cost`: time of one draft token, divided by the time per token of a step
    without drafts."""
    return (1.0 + sum(probabilities)) / (1.0 + cost * len(probabilities))


def best_length(probabilities: Sequence[float], cost: float, least_gain: float = LEAST_GAIN) -> int:
    """Return the length of the draft with the greatest speedup, 0 if none exceeds `least_gain`. See
    `speedup`."""
    best, length = least_gain, 0
    tokens = 1.0
    for count, probability in enumerate(probabilities, 1):
        tokens += probability
        if tokens / (1.0 + cost * count) > best:
            best, length = tokens / (1.0 + cost * count), count
    return length
