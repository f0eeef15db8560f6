"""Converts between bfloat16, as bit patterns, and float32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def bfloat16_to_float32(bits: npt.NDArray[np.uint16]) -> Floats:
    """Convert bfloat16 bit patterns to float32. A bfloat16 is the upper half of a float32."""
    widened = bits.astype(np.uint32)
    widened <<= np.uint32(16)
    return widened.view(np.float32)


def float32_to_bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """Round finite float32 values to the nearest bfloat16, half to even, and return the bit
    patterns."""
    bits = values.view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    upper: npt.NDArray[np.uint16] = (rounded >> np.uint32(16)).astype(np.uint16)
    return upper
