"""Presence, frequency and repetition penalty: the tokens that a row has seen, with counts."""

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
    """Return presence, frequency and repetition penalty in the range of float32; `NONE` if all are
    off."""
    repetition = sampling.repetition_penalty
    if repetition is not None:
        repetition = min(max(repetition, MIN_REPETITION), MAX_REPETITION)
    return (
        sampling.presence_penalty or 0.0,
        sampling.frequency_penalty or 0.0,
        1.0 if repetition is None else repetition,
    )


class SeenState:
    """The tokens of one sequence that its penalties apply to. Prompt tokens are included only for a
    repetition penalty."""

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
        """Return the distinct tokens and how often each occurs in the answer."""
        _, tokens, counts = _native.TokenCounts.lists([self.counts])
        return tokens, counts


class SeenRows:
    """The penalties of a batch in which at least one row has some; None for the others."""

    def __init__(self, states: Sequence[SeenState | None]) -> None:
        self._counts = [state.counts if state else None for state in states]
        penalties = [state.penalties if state else NONE for state in states]
        self._columns = np.array(penalties, np.float32).T.copy()

    def append(self, token_ids: npt.NDArray[np.int32]) -> None:
        """Append one token to each row; a negative one is skipped."""
        _native.TokenCounts.append_each(self._counts, token_ids)

    def tokens(self) -> SeenTokens:
        """Return the tokens that the rows have seen so far, with counts and penalties."""
        return SeenTokens(*_native.TokenCounts.lists(self._counts), *self._columns)
