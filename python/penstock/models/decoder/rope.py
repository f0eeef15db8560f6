"""Computes the tables of cosines and sines that rotate queries and keys (RoPE), with RoPE
scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.models.decoder.block_specs import QueryScaling
from penstock.models.decoder.rope_spec import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeSpec,
    YarnScaling,
)

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_STANDS_STILL: Final = 1e30
"""The divisor of a frequency that llama.cpp's converter writes for a pair that does not turn."""


def rope_table(rope: RopeSpec, positions: int, factors: Floats | None = None) -> Floats:
    """Return the RoPE table [positions, rotary_dim] float32: in each row the cosines of all rotated
    pairs, then their sines.

    - `positions`: the served context length.
    - `factors` [rotary_dim / 2]: divisors of the frequencies, if the model's file has them (this is
      how GGUF stores Llama 3 scaling).

    Angles are float32 products, as in the models' training code.
    """
    frequencies, amplitude = _frequencies(rope, positions)
    if factors is not None:
        frequencies = frequencies / factors
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    table = np.empty((positions, rope.rotary_dim), np.float32)
    half = rope.rotary_dim // 2
    np.cos(angles, out=table[:, :half])
    np.sin(angles, out=table[:, half:])
    if amplitude != 1.0:
        table *= np.float32(amplitude)
    return table


def frequency_factors(rope: RopeSpec) -> Floats:
    """Return the divisors [rotary_dim / 2] of the frequencies that express Llama 3 scaling and
    pairs that do not turn, as GGUF stores them."""
    kept = rope.scaling if isinstance(rope.scaling, Llama3Scaling) else None
    plain, _ = _frequencies(replace(rope, scaling=None, turning_pairs=None), 1)
    wanted, _ = _frequencies(replace(rope, scaling=kept), 1)
    factors = np.full(len(plain), _STANDS_STILL)
    np.divide(plain, wanted, out=factors, where=wanted != 0)
    return factors.astype(np.float32)


def chunked_axes(sections: Sequence[int]) -> tuple[int, ...]:
    """Return the axis of each pair for mRoPE in chunks (Qwen2-VL, Qwen2.5-VL): the first
    sections[0] pairs turn by time, the next ones by height, the last ones by width."""
    return tuple(axis for axis, pairs in enumerate(sections) for _ in range(pairs))


def interleaved_axes(sections: Sequence[int]) -> tuple[int, ...]:
    """Return the axis of each pair for interleaved mRoPE (Qwen3-VL): time, height, width in turn,
    until the pairs of height and width are used up; the others turn by time."""
    pairs = range(sum(sections))
    return tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in pairs)


def identity_table(positions: int) -> Floats:
    """Return a RoPE table [positions, 2] float32 that rotates by zero, for layers without rotary
    embedding."""
    return np.tile(np.array([1, 0], np.float32), (positions, 1))


def query_scales(scaling: QueryScaling, positions: int) -> Floats:
    """Return the factor on the queries at each position: [positions] float32."""
    periods = (np.arange(positions, dtype=np.float64) + scaling.offset) // scaling.period
    scales: Floats = (1 + scaling.strength * np.log1p(periods)).astype(np.float32)
    return scales


def _frequencies(rope: RopeSpec, positions: int) -> tuple[Doubles, float]:
    """Return the frequency of each rotated pair in radians per position, and the factor by which
    cosines and sines are multiplied."""
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim
    plain = rope.theta**-exponents
    if rope.turning_pairs is not None:
        plain[rope.turning_pairs :] = 0
    match rope.scaling:
        case None:
            return plain, 1.0
        case LinearScaling(factor):
            return plain / factor, 1.0
        case Llama3Scaling():
            return _llama3(plain, rope.scaling), 1.0
        case YarnScaling():
            return _yarn(plain, rope, rope.scaling), rope.scaling.attention_factor
        case LongRopeScaling(short, long, original_context, attention_factor):
            return plain / (long if positions > original_context else short), attention_factor


def _llama3(plain: Doubles, scaling: Llama3Scaling) -> Doubles:
    turns = (
        scaling.original_context * plain / (2 * math.pi)
    )  # turns that each pair makes over the original context
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return plain * (kept + (1 - kept) / scaling.factor)


def _yarn(plain: Doubles, rope: RopeSpec, scaling: YarnScaling) -> Doubles:
    def dimension(turns: float) -> float:
        """Return the index, a fraction, of the rotated pair that makes `turns` turns over the
        original context."""
        span = math.log(scaling.original_context / (turns * 2 * math.pi))
        return rope.rotary_dim * span / (2 * math.log(rope.theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001
    divided = np.clip((np.arange(len(plain)) - low) / (high - low), 0, 1)
    scaled: Doubles = plain * (1 - divided + divided / scaling.factor)
    return scaled
