"""Presence, frequency and repetition penalty: which tokens a row has seen, and their cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock import _native
from penstock.dialog import Sampling
from penstock.kernels.sampler_inputs import SeenTokens

NONE = (0.0, 0.0, 1.0)
LEAST_REPETITION = float(np.finfo(np.float32).tiny)
MOST_REPETITION = float(np.finfo(np.float32).max)


def penalties_of(sampling: Sampling) -> tuple[float, float, float]:
    """Presence, frequency, repetition: as float32 can hold them, and `NONE` where all are off."""
    repetition = sampling.repetition_penalty
    if repetition is not None:
        repetition = min(max(repetition, LEAST_REPETITION), MOST_REPETITION)
    return (
        sampling.presence_penalty or 0.0,
        sampling.frequency_penalty or 0.0,
        1.0 if repetition is None else repetition,
    )


class SeenState:
    """What one sequence has seen. Only a repetition penalty asks what its prompt holds."""

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
        """The distinct tokens, and how often the answer has each."""
        _, tokens, counts = _native.TokenCounts.lists([self.counts])
        return tokens, counts


class SeenRows:
    """Rows of a batch of which at least one is penalized; None for those that are not."""

    def __init__(self, states: Sequence[SeenState | None]) -> None:
        self._counts = [state.counts if state else None for state in states]
        penalties = [state.penalties if state else NONE for state in states]
        self._columns = np.array(penalties, np.float32).T.copy()

    def append(self, token_ids: npt.NDArray[np.int32]) -> None:
        """One token follows in each row; a negative one is none."""
        _native.TokenCounts.append_each(self._counts, token_ids)

    def tokens(self) -> SeenTokens:
        """What the rows have seen by now."""
        return SeenTokens(*_native.TokenCounts.lists(self._counts), *self._columns)
