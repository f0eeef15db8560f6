"""Biases of attention by distance, from buckets that hold ever more distances (arXiv 1910.10683,
section 2.1): a half of them for the keys before a token, a half for those after it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

MAX_DISTANCE = 128
"""From here on, one bucket holds all."""


def relative_position_bias(buckets: Floats) -> Floats:
    """[buckets, H] -> [H, 2 M + 1] as `Ops.bidirectional_attention` takes it, M the distance from
    which on nothing changes."""
    distances = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    return np.ascontiguousarray(buckets[_relative_position_bucket(distances, len(buckets))].T)


def _relative_position_bucket(
    distances: npt.NDArray[np.int64], buckets: int
) -> npt.NDArray[np.int64]:
    """Of keys so many positions after a token. Logarithms are float32, as the models were trained
    with: where one ends and the next begins hangs on their rounding."""
    half = buckets // 2
    exact = half // 2
    away = np.abs(distances)
    far = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
    far = far / np.float32(math.log(MAX_DISTANCE / exact)) * np.float32(half - exact)
    own = np.where(away < exact, away, np.minimum(exact + far.astype(np.int64), half - 1))
    return own + half * (distances > 0)
