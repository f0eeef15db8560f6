"""DRY ("don't repeat yourself"): what each token costs that would prolong a repetition.

For a token that somewhere in the sequence followed the n tokens that are now its last, n as large
as can be, multiplier * base^(n - allowed_length), if n reaches allowed_length and 1. No match
reaches back over a breaker, and a token that is a breaker by itself costs nothing. This is the
sampler of text-generation-webui and llama.cpp over the whole context.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from penstock import _native
from penstock.dialog import Sampling

LARGEST = float(np.finfo(np.float32).max)
MOST_TOKENS = 2**31 - 1


class DryState:
    """The repetitions of one sequence. `sampling` is resolved: it has all numbers of DRY."""

    def __init__(self, sampling: Sampling) -> None:
        assert sampling.dry_multiplier is not None and sampling.dry_base is not None
        assert sampling.dry_allowed_length is not None
        self._multiplier = sampling.dry_multiplier
        self._base = sampling.dry_base
        self._allowed = min(sampling.dry_allowed_length, MOST_TOKENS)
        longest = _longest_that_counts(self._multiplier, self._base, self._allowed)
        self._repetitions = _native.Repetitions(sampling.dry_breakers, longest)

    def extend(self, tokens: npt.NDArray[np.int32]) -> None:
        """The next tokens of the sequence."""
        self._repetitions.extend(tokens)

    def append(self, token: int) -> None:
        """The next token of the sequence."""
        self._repetitions.append(token)

    def costs(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Tokens, and what each costs now; at most the largest float32."""
        tokens, lengths = self._repetitions.matches(max(self._allowed, 1))
        with np.errstate(over="ignore"):
            growth = np.power(self._base, lengths.astype(np.float64) - self._allowed)
            costs = np.minimum(self._multiplier * growth, LARGEST)
        return tokens, costs.astype(np.float32)


def _longest_that_counts(multiplier: float, base: float, allowed: int) -> int:
    """A match length beyond which the cost is the same: at its largest, or never growing."""
    least = max(allowed, 1)
    if base <= 1:
        return least
    growing = (math.log(LARGEST) - math.log(multiplier)) / math.log(base)
    return min(least + max(math.ceil(growing), 0), MOST_TOKENS)
