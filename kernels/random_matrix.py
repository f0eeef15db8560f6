"""Makes matrices in any storage format for measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.regroup import has_half_steps
from penstock.kernels.weights import (
    IQ4_VALUES,
    Affine,
    Dense,
    Float8,
    Matrix,
)

Array = npt.NDArray[Any]


def random_like(pattern: Matrix, rows: int, columns: int) -> Matrix:
    """Return a matrix [rows, columns] in the storage format of `pattern`."""
    assert not isinstance(pattern, Float8), "the CPU has no products of 8-bit floats"
    if isinstance(pattern, Dense):
        return Dense(np.zeros((rows, columns), pattern.data.dtype), pattern.dtype)

    def filled(source: Array | None, width: int) -> Any:
        return None if source is None else np.ones((rows, width), source.dtype)

    groups, supers = -(-columns // pattern.group), -(-columns // 256)
    shape = (rows, columns // 2 if pattern.bits == 4 else columns)
    return replace(
        pattern,
        q=np.resize(_quants(pattern), shape),
        scale=filled(pattern.scale, groups),
        minimum=filled(pattern.minimum, groups),
        super_scale=filled(pattern.super_scale, supers),
        super_minimum=filled(pattern.super_minimum, supers),
    )


_MIDDLES: Final = (16, 32, 64, 128)
"""Zero points of integers of 5 to 8 bits. Others are those of tables of at most 16 values."""


def _quants(pattern: Affine) -> npt.NDArray[np.uint8]:
    """Return integers that are typical of the format of `pattern`. Their values matter because
    packing recognizes the few values of 4-bit tables, and integers of 5 and 6 bits."""
    if pattern.bits == 4:
        return np.arange(256, dtype=np.uint8)
    if has_half_steps(pattern):
        return np.arange(0, 2 * pattern.zero_point + 1, 2, dtype=np.uint8)
    if pattern.minimum is None and (
        pattern.zero_point not in _MIDDLES or (pattern.q == IQ4_VALUES[0]).all()
    ):
        return (pattern.zero_point + np.arange(-8, 8)).clip(0, 255).astype(np.uint8)
    of_five = pattern.minimum is not None and pattern.group == 32  # Q5_1 and Q5_K
    small = 0 < pattern.zero_point <= 32 or of_five
    return np.arange(64 if small else 256, dtype=np.uint8)
