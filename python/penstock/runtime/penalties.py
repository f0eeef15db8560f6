"""Presence, frequency and repetition penalties: count the tokens that each row has seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock import _native
from penstock.dialog import Sampling
from penstock.kernels.sampler_inputs import SeenTokens

NONE = (0.0, 0.0, 1.0)
MIN_REPETITION = float(np.finfo(np.float32).tiny)
MAX_REPETITION = float(np.finfo(np.float32).max)


def penalties_of(sampling: Sampling) -> tuple[float, float, float]:
    """Return the presence, frequency and repetition penalties, limited to the range of float32.
    `NONE` means that all are off."""
    repetition = sampling.repetition_penalty
    if repetition is not None:
        repetition = min(max(repetition, MIN_REPETITION), MAX_REPETITION)
    return (
        sampling.presence_penalty or 0.0,
        sampling.frequency_penalty or 0.0,
        1.0 if repetition is None else repetition,
    )


class SeenState:
    """The tokens of one sequence to which its penalties apply, with counts. Prompt tokens are
    included only if there is a repetition penalty."""

    def __init__(
        self,
        tokens: npt.NDArray[np.int32],
        prompt_tokens: int,
        penalties: tuple[float, float, float],
    ) -> None:
        self.penalties = penalties
        self.counts = _native.TokenCounts(tokens[: prompt_tokens if penalties[2] != 1.0 else 0])
        self.counts.extend(tokens[prompt_tokens:])

    def listed(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the distinct tokens, and how often each of them occurs in the answer."""
        _, tokens, counts = _native.TokenCounts.lists([self.counts])
        return tokens, counts


class SeenRows:
    """The penalties of the rows of a step, at least one of which has penalties. `states`: None for
    a row without penalties."""

    def __init__(self, states: Sequence[SeenState | None]) -> None:
        self._counts = [state.counts if state else None for state in states]
        penalties = [state.penalties if state else NONE for state in states]
        self._columns = np.array(penalties, np.float32).T.copy()

    def append(self, token_ids: npt.NDArray[np.int32]) -> None:
        """Append one token to the sequence of each row. A negative token is skipped."""
        _native.TokenCounts.append_each(self._counts, token_ids)

    def tokens(self) -> SeenTokens:
        """Return the tokens that each row has seen so far, with counts and penalties."""
        return SeenTokens(*_native.TokenCounts.lists(self._counts), *self._columns)
