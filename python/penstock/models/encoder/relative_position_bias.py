"""Computes attention biases by relative distance, which is divided into buckets of growing size
(T5, arXiv 1910.10683, section 2.1): one half of the buckets for keys before a token, one half for
keys after it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

MAX_DISTANCE = 128
"""All distances of at least MAX_DISTANCE share one bucket."""


def relative_position_bias(buckets: Floats) -> Floats:
    """Expand one bias per bucket and head, [buckets, H], to one per head and distance, [H, 2 *
    MAX_DISTANCE + 1], as `Ops.bidirectional_attention` reads it."""
    distances = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    return np.ascontiguousarray(buckets[_relative_position_bucket(distances, len(buckets))].T)


def _relative_position_bucket(
    distances: npt.NDArray[np.int64], buckets: int
) -> npt.NDArray[np.int64]:
    """Return the bucket of each distance, which is the position of a key minus that of the token.
    Logarithms are float32, as in training: the borders of the buckets depend on rounding."""
    half = buckets // 2
    exact = half // 2
    away = np.abs(distances)
    far = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
    far = far / np.float32(math.log(MAX_DISTANCE / exact)) * np.float32(half - exact)
    own: npt.NDArray[np.int64] = np.where(
        away < exact, away, np.minimum(exact + far.astype(np.int64), half - 1)
    )
    return own + half * (distances > 0)
