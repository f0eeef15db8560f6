"""The language-model head of assistants with clusters of tokens (see `CentroidSpec`)."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense
from penstock.quant.dequantize import dequantize

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

_LEAST: Final = np.float32(-1e30)
"""The logit of a token outside of the chosen clusters: finite, but never sampled."""


class CentroidHead:
    """Computes the logits of the tokens in the best clusters of each hidden state.

    - `centroids`: [E, W] float32.
    - `tokens`: [E, V / E], the tokens of each cluster. Every token is in one cluster.
    - `table`: [V, W], the rows of the head by token. It is copied in the order of `tokens`.
    - `chosen`: number of clusters for each hidden state.
    """

    def __init__(self, centroids: Floats, tokens: Ints, table: Dense, chosen: int) -> None:
        self._centroids = centroids
        self._tokens = tokens
        self._rows = table.data[tokens.ravel()].reshape(*tokens.shape, table.shape[1])
        self._dtype = table.dtype
        self._chosen = chosen

    def logits(self, states: Floats) -> Floats:
        """Return the logits [S, V] of the final hidden states [S, W]."""
        logits = np.full((len(states), self._tokens.size), _LEAST, np.float32)
        for state, own in zip(states, logits, strict=True):
            scores = self._centroids @ state
            best = np.argpartition(-scores, self._chosen - 1)[: self._chosen]
            rows = self._rows[best].reshape(-1, len(state))
            own[self._tokens[best].ravel()] = dequantize(Dense(rows, self._dtype)) @ state
        return logits
