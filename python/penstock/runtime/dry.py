"""DRY ("don't repeat yourself"): what each token costs that would prolong a repetition.

For a token that somewhere in the sequence followed the n tokens that are now its last, n as large
as can be, multiplier * base^(n - allowed_length), if n reaches allowed_length and 1. No match
reaches back over a breaker, and a token that is a breaker by itself costs nothing. This is the
sampler of text-generation-webui and llama.cpp over the whole context.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock import _native
from penstock.dialog import Sampling
from penstock.kernels.sampler_inputs import TokenValues

LARGEST = float(np.finfo(np.float32).max)
MOST_TOKENS = 2**31 - 1


class DryState:
    """The repetitions of one sequence. `sampling` is resolved: it has all numbers of DRY."""

    def __init__(self, tokens: npt.NDArray[np.int32], sampling: Sampling) -> None:
        assert sampling.dry_multiplier is not None and sampling.dry_base is not None
        assert sampling.dry_allowed_length is not None
        self.multiplier = sampling.dry_multiplier
        self.base = sampling.dry_base
        self.allowed = min(sampling.dry_allowed_length, MOST_TOKENS)
        longest = _longest_that_counts(self.multiplier, self.base, self.allowed)
        breakers = [
            (np.frombuffer(one.heads, np.int32), np.array(one.tail, np.int32))
            for one in sampling.dry_breakers
        ]
        self.repetitions = _native.DryRepetitions(breakers, longest)
        self.repetitions.extend(tokens)


class DryRows:
    """Rows of a batch of which at least one uses DRY; None for those that do not."""

    def __init__(self, states: Sequence[DryState | None]) -> None:
        numbers = [(s.multiplier, s.base, s.allowed) if s else (0.0, 1.0, 1) for s in states]
        self._repetitions = [state.repetitions if state else None for state in states]
        self._multiplier, self._base, self._allowed = np.array(numbers, np.float64).T.copy()
        self._least = np.maximum(self._allowed, 1).astype(np.int32)

    def append(self, token_ids: npt.NDArray[np.int32]) -> None:
        """One token follows in each row; a negative one is none."""
        _native.DryRepetitions.append_each(self._repetitions, token_ids)

    def costs(self) -> TokenValues:
        """What tokens of each row cost now; at most the largest float32."""
        starts, tokens, lengths = _native.DryRepetitions.lists(self._repetitions, self._least)
        row = np.repeat(np.arange(len(self._least)), np.diff(starts))
        with np.errstate(over="ignore"):
            growth = np.power(self._base[row], lengths - self._allowed[row])
            costs = np.minimum(self._multiplier[row] * growth, LARGEST)
        return TokenValues(starts, tokens, costs.astype(np.float32))


def _longest_that_counts(multiplier: float, base: float, allowed: int) -> int:
    """A match length beyond which the cost is the same: at its largest, or never growing."""
    least = max(allowed, 1)
    if base <= 1:
        return least
    growing = (math.log(LARGEST) - math.log(multiplier)) / math.log(base)
    return min(least + max(math.ceil(growing), 0), MOST_TOKENS)
