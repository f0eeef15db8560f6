"""Converts the plain numbers of GGML: floats as views, other numbers as exact float32."""

from __future__ import annotations

import numpy as np

from penstock.kernels.weights import Dense
from penstock.quant.gguf.block_arrays import Bytes


def f32(raw: Bytes, shape: tuple[int, int]) -> Dense:
    """Return a view of float32 values."""
    return Dense(raw.view("<f4").reshape(shape), "f32")


def f16(raw: Bytes, shape: tuple[int, int]) -> Dense:
    """Return a view of float16 values."""
    return Dense(raw.view("<f2").reshape(shape), "f16")


def bf16(raw: Bytes, shape: tuple[int, int]) -> Dense:
    """Return a view of bfloat16 bits."""
    return Dense(raw.view("<u2").reshape(shape), "bf16")


def f64(raw: Bytes, shape: tuple[int, int]) -> Dense:
    """Round float64 values to float32. Raises ValueError if a finite value becomes infinite."""
    wide = raw.view("<f8")
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    if (np.isfinite(wide) & ~np.isfinite(narrow)).any():
        raise ValueError("not all numbers fit into float32")
    return Dense(narrow.reshape(shape), "f32")


def i8(raw: Bytes, shape: tuple[int, int]) -> Dense:
    """Convert 8-bit integers."""
    return _exact(raw, "i1", shape)


def i16(raw: Bytes, shape: tuple[int, int]) -> Dense:
    """Convert 16-bit integers."""
    return _exact(raw, "<i2", shape)


def i32(raw: Bytes, shape: tuple[int, int]) -> Dense:
    """Convert 32-bit integers. Raises ValueError for an integer that float32 cannot hold."""
    return _exact(raw, "<i4", shape)


def i64(raw: Bytes, shape: tuple[int, int]) -> Dense:
    """Convert 64-bit integers. Raises ValueError for an integer that float32 cannot hold."""
    return _exact(raw, "<i8", shape)


def _exact(raw: Bytes, dtype: str, shape: tuple[int, int]) -> Dense:
    numbers = raw.view(dtype)
    values = numbers.astype(np.float32)
    # 2^24 + 1 is the first integer that float32 lacks; larger ones that it has are of no use here.
    if numbers.itemsize > 2 and (np.abs(values) > 2.0**24).any():
        raise ValueError("integers beyond 2^24 are not supported")
    return Dense(values.reshape(shape), "f32")
