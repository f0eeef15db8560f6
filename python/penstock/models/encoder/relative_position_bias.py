"""Attention biases by relative distance, from buckets of growing size (T5, arXiv 1910.10683,
section 2.1): half of them for keys before a token, half for keys after it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

MAX_DISTANCE = 128
"""All distances from here on share one bucket."""


def relative_position_bias(buckets: Floats) -> Floats:
    """Expand [buckets, H] to the biases [H, 2 M + 1] that `Ops.bidirectional_attention` takes. M is
    MAX_DISTANCE."""
    distances = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    return np.ascontiguousarray(buckets[_relative_position_bucket(distances, len(buckets))].T)


def _relative_position_bucket(
    distances: npt.NDArray[np.int64], buckets: int
) -> npt.NDArray[np.int64]:
    """Return the bucket of keys at these distances after a token. Logarithms are float32, as in
    training: the borders of buckets depend on their rounding."""
    half = buckets // 2
    exact = half // 2
    away = np.abs(distances)
    far = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
    far = far / np.float32(math.log(MAX_DISTANCE / exact)) * np.float32(half - exact)
    own: npt.NDArray[np.int64] = np.where(
        away < exact, away, np.minimum(exact + far.astype(np.int64), half - 1)
    )
    return own + half * (distances > 0)
