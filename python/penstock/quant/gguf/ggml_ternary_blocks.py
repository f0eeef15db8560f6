"""Converts the GGML types of one bit and of three levels per weight, which 4-bit integers hold."""

from __future__ import annotations

import numpy as np

from penstock.kernels.regroup import split_groups
from penstock.kernels.weights import Affine
from penstock.quant.gguf.block_arrays import (
    Blocks,
    Bytes,
    bit_pairs,
    column,
    field_bytes,
    fill_quants,
    join_pairs,
)
from penstock.quant.weight_slices import ACTIVATION_GROUP

Q1_0 = np.dtype([("d", "<f2"), ("qs", "V16")])
TQ1_0 = np.dtype([("qs", "V48"), ("qh", "V4"), ("d", "<f2")])
TQ2_0 = np.dtype([("qs", "V64"), ("d", "<f2")])

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
_BIT_PAIRS = np.array(  # byte of 8 bits -> 4 bytes of two integers, 0 or 2
    [
        [(byte >> at & 1) * 2 | (byte >> at + 1 & 1) * 32 for at in (0, 2, 4, 6)]
        for byte in range(256)
    ],
    np.uint8,
).view("<u4")[:, 0]


def q1_0(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q1_0: a bit is d or -d."""
    blocks = raw.view(Q1_0)
    q = fill_quants(blocks, 64, _bits)
    return _in_groups(128, q, blocks, shape)


def tq1_0(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert TQ1_0: five levels per byte, in base 3."""
    blocks = raw.view(TQ1_0)
    q = fill_quants(blocks, 128, _base_3)
    return _in_groups(256, q, blocks, shape)


def tq2_0(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert TQ2_0: levels of two bits, minus one. A fourth level, 2, is carried."""
    blocks = raw.view(TQ2_0)
    q = fill_quants(blocks, 128, _pairs)
    return _in_groups(256, q, blocks, shape)


def _in_groups(block: int, q: Bytes, blocks: Blocks, shape: tuple[int, int]) -> Affine:
    """Return the matrix d * (q - 1) of the packed quants `q`, which are shifted to the zero point
    of Q4_0, so that the kernels of Q4_0 multiply them. Ranks divide columns in steps of 32, so that
    scales of blocks are repeated for groups of 32."""
    d = column(blocks, "d", shape)
    q += 0x77  # 7 to each of two quants
    whole = Affine(4, block, q.reshape(shape[0], -1), d, zero_point=8)
    return split_groups(whole, ACTIVATION_GROUP)


def _bits(blocks: Blocks, out: Bytes) -> None:
    out.view("<u4")[:] = _BIT_PAIRS.take(field_bytes(blocks, "qs")).reshape(-1)


def _pairs(blocks: Blocks, out: Bytes) -> None:
    out[:] = join_pairs(bit_pairs(blocks))


def _base_3(blocks: Blocks, out: Bytes) -> None:
    """Write the levels of each block in the order of its elements. A byte is a fraction of 256,
    whose digits in base 3 belong to elements 32, 16 or 4 apart: 32 bytes of five digits, 16 bytes
    of five, and 4 bytes `qh` of four."""
    qs, qh = field_bytes(blocks, "qs"), field_bytes(blocks, "qh")
    runs = ((qs[:, :32], _POWERS), (qs[:, 32:], _POWERS), (qh, _POWERS[:4]))
    shifted = [(run[:, None] * powers).reshape(len(blocks), -1) for run, powers in runs]
    fractions = np.concatenate(shifted, axis=1)
    digits = (fractions.astype(np.uint16) * np.uint16(3) >> np.uint16(8)).astype(np.uint8)
    out[:] = join_pairs(digits.view(np.uint64).reshape(-1))
