"""Converts the GGML types whose quants are indices of a table of 16 integers: IQ4, MXFP4, NVFP4."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import FLOAT4_VALUES, FLOAT4_ZERO, IQ4_VALUES, Affine
from penstock.quant.gguf.block_arrays import (
    Blocks,
    Bytes,
    column,
    field_bytes,
    fill_quants,
    nibbles,
)
from penstock.quant.mxfp4 import mxfp4_matrix

IQ4_NL = np.dtype([("d", "<f2"), ("qs", "V16")])
IQ4_XS = np.dtype([("d", "<f2"), ("high", "<u2"), ("low", "V4"), ("qs", "V128")])
MXFP4 = np.dtype([("e", "u1"), ("qs", "V16")])
NVFP4 = np.dtype([("d", "V4"), ("qs", "V32")])


def iq4_nl(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert IQ4_NL."""
    blocks = raw.view(IQ4_NL)
    q = fill_quants(blocks, 32, _look_up_iq4)
    return Affine(8, 32, q.reshape(shape), column(blocks, "d", shape), zero_point=128)


def iq4_xs(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert IQ4_XS. Each 32 elements have a 6-bit multiplier of `d`, biased by 32. `low` contains
    its low four bits, `high` its top two bits."""
    blocks = raw.view(IQ4_XS)
    q = fill_quants(blocks, 256, _look_up_iq4)
    low = field_bytes(blocks, "low")[:, :, None]
    scale = (low >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    scale |= ((blocks["high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3) << 4).astype(
        np.uint8
    )
    signed = (scale - np.uint8(32)).view(np.int8).reshape(shape[0], -1)
    d = column(blocks, "d", shape)
    return Affine(8, 32, q.reshape(shape), signed, zero_point=128, super_scale=d)


def mxfp4(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert MXFP4. Raises ValueError for a scale that is NaN or too large."""
    blocks = raw.view(MXFP4)
    q = fill_quants(blocks, 32, _look_up_float4)
    return mxfp4_matrix(q.reshape(shape), np.ascontiguousarray(blocks["e"]).reshape(shape[0], -1))


def nvfp4(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert NVFP4. Each 16 elements have a scale, an 8-bit float without a sign; the low nibbles
    of their 8 bytes are the first 8 elements. Halved scales are exact in float16."""
    blocks = raw.view(NVFP4)
    q = fill_quants(blocks, 64, _look_up_float4_of_16)
    scale = _HALVED_E4M3[field_bytes(blocks, "d")].reshape(shape[0], -1)
    return Affine(8, 16, q.reshape(shape), scale, zero_point=FLOAT4_ZERO)


def _e4m3_halved() -> npt.NDArray[np.float16]:
    """Return half of each 8-bit float without a sign. As in GGML, the code of NaN means 0, and the
    highest bit of a code does not count."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 8)
    values = np.where(exponent > 0, normal, mantissa * 2.0**-10)
    values[0x7F] = 0
    return values.astype(np.float16)


_HALVED_E4M3: Final = _e4m3_halved()


def _look_up_iq4(blocks: Blocks, out: Bytes) -> None:
    _look_up_nibbles(blocks, out, IQ4_VALUES, "V16")


def _look_up_float4(blocks: Blocks, out: Bytes) -> None:
    _look_up_nibbles(blocks, out, FLOAT4_VALUES, "V16")


def _look_up_float4_of_16(blocks: Blocks, out: Bytes) -> None:
    _look_up_nibbles(blocks, out, FLOAT4_VALUES, "V8")


def _look_up_nibbles(blocks: Blocks, out: Bytes, table: Bytes, half: str) -> None:
    """Write `table[nibble]`, one byte per element, for each run of bytes of `qs` that is as long as
    the type `half`: first for the low nibbles of the run, then for the high nibbles."""
    low, high = nibbles(blocks)
    halves = out.view(half).reshape(-1, 2)
    halves[:, 0] = table.take(low.view(np.uint8)).view(half)
    halves[:, 1] = table.take(high.view(np.uint8)).view(half)
