"""Quantizes float weights to integers in groups of 32 columns while a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Affine, Dense
from penstock.quant.dequantize import dequantize
from penstock.quant.rest import Rest, no_rest

Bits: TypeAlias = Literal[4, 8]
Floats: TypeAlias = npt.NDArray[np.float32]

GROUP: Final = 32
_LEVELS: Final = 15  # levels above a group's minimum, for 4 bits
_STEPS: Final = 127  # levels on each side of zero, for 8 bits
_CHUNK_ELEMENTS: Final = 1 << 16  # a millisecond or two; they fit in the cache
# Scales are float16 if the matrix's largest scale is at least the first number and its largest
# weight at most the second: rounding the scales then moves a weight by less than a tenth of a step.
_NARROW: Final = (2.0**-14, 65_504.0)


def quantize_affine(
    matrix: Dense, bits: Bits, importance: Floats | None = None, rest: Rest = no_rest
) -> Affine:
    """Quantize `matrix` [N, C] to integers of `bits` bits.

    8 bits: 127 levels on each side of zero. 4 bits: 16 levels from the minimum to the maximum of a
    group, fitted once by least squares. Scales and minima are float16, or float32 if float16 is too
    coarse. C must be a multiple of GROUP. Raises ValueError if a number is not finite.

    `importance` [C]: the weight of each column in the fit of 4 bits; None: all columns count the
    same. `rest`: called after each few milliseconds.
    """
    rows, columns = matrix.shape
    assert columns % GROUP == 0
    largest = max((float(np.abs(part).max()) for part in _chunks(matrix, rest)), default=0.0)
    if not np.isfinite(largest):
        raise ValueError("not all numbers are finite")
    scale = largest / (_LEVELS if bits == 4 else _STEPS)
    narrow = scale == 0 or (_NARROW[0] <= scale and largest <= _NARROW[1])
    dtype = np.dtype(np.float16 if narrow else np.float32)
    if bits == 8:
        parts = [_to_8_bits(part.reshape(-1, GROUP), dtype) for part in _chunks(matrix, rest)]
    else:
        each = np.ones(columns, np.float32) if importance is None else importance
        parts = [_to_4_bits(part, dtype, each) for part in _chunks(matrix, rest)]
    q, scales, minima = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Affine(
        bits,
        GROUP,
        q.reshape(rows, -1),
        scales.reshape(rows, -1),
        minima.reshape(rows, -1) if bits == 4 else None,
        zero_point=0 if bits == 4 else 128,
    )


def _chunks(matrix: Dense, rest: Rest) -> Iterator[Floats]:
    """Yield consecutive rows of the matrix, a few at a time, as float32. Call `rest` after the
    caller has used them."""
    rows, columns = matrix.shape
    step = max(_CHUNK_ELEMENTS // columns, 1)
    for first in range(0, rows, step):
        yield dequantize(Dense(matrix.data[first : first + step], matrix.dtype))
        rest()


def _to_8_bits(values: Floats, dtype: np.dtype[Any]) -> tuple[Any, Any, Any]:
    """Quantize groups [G, 32]. Return the codes, the scales [G], and an empty array of minima."""
    scale = (np.abs(values).max(axis=1) / np.float32(_STEPS)).astype(dtype)
    levels = np.rint(values * _inverse(scale)[:, None])
    codes = np.clip(levels, -_STEPS, _STEPS) + np.float32(128)
    return codes.astype(np.uint8), scale, scale[:0]


def _to_4_bits(rows: Floats, dtype: np.dtype[Any], importance: Floats) -> tuple[Any, Any, Any]:
    """Quantize rows [N, C]. Return the codes, two per byte, the scales [G] and the minima [G] of
    all groups."""
    values = rows.reshape(-1, GROUP)
    weights = np.tile(_shares(importance.reshape(-1, GROUP)), (len(rows), 1))
    least = values.min(axis=1)
    scale = (values.max(axis=1) - least) / np.float32(_LEVELS)
    scale, least = _fitted(values, _levels(values, scale, least), scale, least, weights)
    scale, least = scale.astype(dtype), least.astype(dtype)
    codes = _levels(values, scale.astype(np.float32), least.astype(np.float32)).astype(np.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, scale, least


def _shares(importance: Floats) -> Floats:
    """Return the importance [C / 32, 32] of the columns of a row as shares of their group. A column
    has at least a hundredth of an equal share, so that a line through few points stays sound."""
    shares = importance + importance.mean(axis=1, keepdims=True) / np.float32(100)
    sums = shares.sum(axis=1, keepdims=True)
    equal: Floats = np.full_like(shares, 1 / GROUP)
    np.divide(shares, sums, out=equal, where=sums > 0)
    return equal


def _levels(values: Floats, scale: Floats, least: Floats) -> Floats:
    levels: Floats = np.rint((values - least[:, None]) * _inverse(scale)[:, None])
    return np.clip(levels, 0, _LEVELS, out=levels)


def _fitted(
    values: Floats, levels: Floats, scale: Floats, least: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """Return scale and minimum of each group from the least-squares line through its points (level,
    value), whose errors count by `weights`, 1 in all. If all levels of a group are equal, its scale
    and minimum are unchanged."""
    mean_level = np.einsum("gk,gk->g", weights, levels)
    mean = np.einsum("gk,gk->g", weights, values)
    apart = levels - mean_level[:, None]
    weighted = weights * apart
    spread = np.einsum("gk,gk->g", weighted, apart)
    slope = np.einsum("gk,gk->g", weighted, values) / np.where(spread == 0, 1, spread)
    bent = spread != 0
    return np.where(bent, slope, scale), np.where(bent, mean - slope * mean_level, least)


def _inverse(scale: npt.NDArray[Any]) -> Floats:
    """Return 1 / scale, or 0 if the scale is 0."""
    wide: Floats = scale.astype(np.float32)
    inverse: Floats = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)
    return inverse
