"""A float64 sampler by full sorts, and the rounding by which native samples may differ from it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from native_isas import Kernels


@dataclass
class Settings:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seeds: npt.ArrayLike = field(default_factory=lambda: [0])
    positions: npt.ArrayLike = 0


def sample(kernels: Kernels, logits: np.ndarray, settings: Settings) -> np.ndarray:
    """Sample one row of logits [V] at each seed, or rows [S, V] at S seeds."""
    seeds = np.asarray(settings.seeds, np.uint64)
    rows = np.ascontiguousarray(np.broadcast_to(logits, (len(seeds), logits.shape[-1])), np.float32)

    def column(value: npt.ArrayLike, dtype: npt.DTypeLike) -> np.ndarray:
        return np.ascontiguousarray(np.broadcast_to(value, len(seeds)), dtype)

    out = np.full(len(seeds), -2, np.int32)
    kernels(
        "sample",
        [
            rows,
            column(settings.temperature, np.float32),
            column(settings.top_k, np.int32),
            column(settings.top_p, np.float32),
            column(settings.min_p, np.float32),
            seeds.view(np.int64),
            column(settings.positions, np.uint64).view(np.int64),
            out,
        ],
    )
    return out


def kept_masses(logits: np.ndarray, s: Settings) -> np.ndarray:
    """Return the probabilities [V] of sampling in float64, by a full sort."""
    x = logits.astype(np.float64)
    order = np.lexsort((np.arange(len(x)), -x))
    if 0 < s.top_k < len(x):
        order = order[: s.top_k]
    weights = np.exp((x[order] - x.max()) / np.float32(s.temperature))
    mass = weights / weights.sum()
    if s.top_p < 1:
        order = order[: 1 + int((np.cumsum(mass) < np.float32(s.top_p)).sum())]
    weights = weights[: len(order)]
    weights[weights < np.float32(s.min_p)] = 0
    result = np.zeros(len(x))
    result[order] = weights / weights.sum()
    return result


def philox_uniform(seed: int, position: int) -> float:
    counter = [position & 0xFFFFFFFF, position >> 32, 0, 0]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & 0xFFFFFFFF,
            (first >> 32) ^ counter[3] ^ key[1],
            first & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return (counter[0] >> 8) * 2.0**-24


def check_samples(kernels: Kernels, logits: np.ndarray, settings: Settings) -> None:
    """Check that each token is the inverse CDF at its uniform number, up to the rounding of
    sums."""
    masses = kept_masses(logits, settings)
    ends = np.cumsum(masses)
    for seed, token in zip(settings.seeds, sample(kernels, logits, settings), strict=True):
        uniform = philox_uniform(int(seed), int(np.asarray(settings.positions)))
        assert masses[token] > 0, (seed, token)
        assert ends[token] - masses[token] - 2e-6 <= uniform <= ends[token] + 2e-6, (seed, token)


def normal_logits(vocabulary: int, seed: int = 0, num_distinct: int = 0) -> np.ndarray:
    logits = (3 * np.random.default_rng(seed).standard_normal(vocabulary)).astype(np.float32)
    return (
        np.round(logits * num_distinct).astype(np.float32) / num_distinct
        if num_distinct
        else logits
    )
