"""DRY ("don't repeat yourself"): a penalty on tokens that would prolong a repetition.

If a token follows an earlier occurrence of the last n tokens of the sequence (n as large as
possible), its penalty is multiplier * base^(n - allowed_length), provided that n >= allowed_length
and n >= 1. A match does not extend across a sequence breaker, and a sequence breaker itself has no
penalty. This is the sampler of text-generation-webui and llama.cpp, applied to the whole context.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock import _native
from penstock.dialog import Sampling
from penstock.kernels.sampler_inputs import TokenValues

MAX_PENALTY = float(np.finfo(np.float32).max)
MAX_TOKENS = 2**31 - 1


class DryState:
    """The repetitions in one sequence. `tokens`: its known tokens. `sampling`: resolved, so that
    all its DRY fields are set."""

    def __init__(self, tokens: npt.NDArray[np.int32], sampling: Sampling) -> None:
        assert sampling.dry_multiplier is not None and sampling.dry_base is not None
        assert sampling.dry_allowed_length is not None
        self.multiplier = sampling.dry_multiplier
        self.base = sampling.dry_base
        self.allowed = min(sampling.dry_allowed_length, MAX_TOKENS)
        longest = _longest_match(self.multiplier, self.base, self.allowed)
        breakers = [
            (np.frombuffer(one.heads, np.int32), np.array(one.tail, np.int32))
            for one in sampling.dry_breakers
        ]
        self.repetitions = _native.DryRepetitions(breakers, longest)
        self.repetitions.extend(tokens)


class DryRows:
    """The DRY states of the rows of a step, at least one of which uses DRY. `states`: None for a
    row without DRY."""

    def __init__(self, states: Sequence[DryState | None]) -> None:
        numbers = [(s.multiplier, s.base, s.allowed) if s else (0.0, 1.0, 1) for s in states]
        self._repetitions = [state.repetitions if state else None for state in states]
        self._multiplier, self._base, self._allowed = np.array(numbers, np.float64).T.copy()
        self._least = np.maximum(self._allowed, 1).astype(np.int32)

    def append(self, token_ids: npt.NDArray[np.int32]) -> None:
        """Append one token to the sequence of each row. A negative token is skipped."""
        _native.DryRepetitions.append_each(self._repetitions, token_ids)

    def penalties(self) -> TokenValues:
        """Return the tokens to penalize in each row, with their penalties, at most
        `MAX_PENALTY`."""
        starts, tokens, lengths = _native.DryRepetitions.lists(self._repetitions, self._least)
        row = np.repeat(np.arange(len(self._least)), np.diff(starts))
        with np.errstate(over="ignore"):
            growth = np.power(self._base[row], lengths - self._allowed[row])
            values = np.minimum(self._multiplier[row] * growth, MAX_PENALTY)
        return TokenValues(starts, tokens, values.astype(np.float32))


def _longest_match(multiplier: float, base: float, allowed: int) -> int:
    """Return the match length from which on the penalty no longer changes, because it has reached
    its maximum or does not grow."""
    least = max(allowed, 1)
    if base <= 1:
        return least
    growing = (math.log(MAX_PENALTY) - math.log(multiplier)) / math.log(base)
    return min(least + max(math.ceil(growing), 0), MAX_TOKENS)
