"""Converts MXFP4 of the OCP Microscaling Formats specification: each 32 consecutive values of a row
are 4-bit floats (e2m1) that share a power of two (e8m0) as their scale. The conversion is exact:
the values are doubled to become integers, and the scales are halved."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import FLOAT4_VALUES, FLOAT4_ZERO, Affine
from penstock.quant.affine import narrow_to_float16

Bytes = npt.NDArray[np.uint8]

GROUP: Final = 32
BIAS: Final = 127
NAN_EXPONENT: Final = 255
LARGEST_EXPONENT: Final = BIAS + 117
"""The largest supported exponent. With larger exponents, the sum of a few numbers overflows."""

_PAIRS = (FLOAT4_VALUES[:, None].astype("<u2") << 8 | FLOAT4_VALUES).reshape(-1)
"""Byte of two 4-bit codes -> the two values, that of the low code first."""


def look_up_pairs(codes: Bytes) -> Bytes:
    """Look up the values of packed codes: bytes [..., n], with two codes each and the low code
    first -> integers [..., 2 n] as in `Affine`."""
    return _PAIRS.take(codes).view(np.uint8)


def mxfp4_matrix(q: Bytes, exponents: Bytes) -> Affine:
    """Return an MXFP4 matrix as `Affine`.

    - `q` [N, C]: integers from FLOAT4_VALUES.
    - `exponents` [N, C / 32]: biased by 127.

    Scales are float16 if that is exact for all groups with a nonzero value, or else float32. Raises
    ValueError for an exponent that represents NaN or is too large.
    """
    if exponents.max(initial=0) > LARGEST_EXPONENT:
        found = int(exponents.max())
        meaning = "NaN" if found == NAN_EXPONENT else f"2^{found - BIAS}"
        raise ValueError(f"a scale of MXFP4 is {meaning}; the largest supported one is 2^117")
    scale = np.ldexp(np.float32(1), exponents.astype(np.int32) - (BIAS + 1))
    (held,) = narrow_to_float16(scale)
    if held.dtype == np.float32:
        zeros = (q.reshape(*exponents.shape, GROUP) == FLOAT4_ZERO).all(axis=-1)
        (held,) = narrow_to_float16(np.where(zeros, np.float32(0), scale))
    return Affine(8, GROUP, q, held, zero_point=FLOAT4_ZERO)


def mxfp4_layout_sample() -> Affine:
    """Return one group of zeros in the largest form that `mxfp4_matrix` may return. The actual form
    depends on the data."""
    q = np.full((1, GROUP), FLOAT4_ZERO, np.uint8)
    return Affine(8, GROUP, q, np.zeros((1, 1), np.float32), zero_point=FLOAT4_ZERO)
