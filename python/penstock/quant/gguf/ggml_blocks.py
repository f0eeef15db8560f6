"""Converts GGML's block formats exactly into the layouts of the kernels.

A GGML block stores its scale next to its quants; the kernels need scales and quants in separate
arrays, and nibbles in the order of the elements. The conversion is whole-array arithmetic on 64-bit
integers, during which numpy releases the GIL, in pieces that fit in the L2 cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import FLOAT4_VALUES, IQ4_VALUES, Affine, Dense, Matrix
from penstock.quant.mxfp4 import mxfp4_matrix

Bytes = npt.NDArray[np.uint8]
Lanes = npt.NDArray[np.uint64]

PIECE_BYTES = 1 << 18  # of quants; the temporary arrays of a piece are two to three times as large

LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
LOW_BITS = np.uint64(0x0101010101010101)
LOW_PAIRS = np.uint64(0x0303030303030303)
SIGN_BITS = np.uint64(0x8080808080808080)

# The fields are raw bytes (V16), not small arrays, so that copying an item is one move.
Q4_0 = np.dtype([("d", "<f2"), ("qs", "V16")])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "V16")])
Q5_0 = np.dtype([("d", "<f2"), ("qh", "V4"), ("qs", "V16")])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "V4"), ("qs", "V16")])
Q8_0 = np.dtype([("d", "<f2"), ("qs", "V32")])
Q2_K = np.dtype([("scales", "V16"), ("qs", "V64"), ("d", "<f2"), ("dmin", "<f2")])
Q3_K = np.dtype([("qh", "V32"), ("qs", "V64"), ("scales", "V12"), ("d", "<f2")])
Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "V12"), ("qs", "V128")])
Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "V12"), ("qh", "V32"), ("qs", "V128")])
Q6_K = np.dtype([("ql", "V128"), ("qh", "V64"), ("scales", "V16"), ("d", "<f2")])
IQ4_NL = np.dtype([("d", "<f2"), ("qs", "V16")])
MXFP4 = np.dtype([("e", "u1"), ("qs", "V16")])
IQ4_XS = np.dtype([("d", "<f2"), ("high", "<u2"), ("low", "V4"), ("qs", "V128")])

Fill = Callable[[npt.NDArray[np.void], Bytes], None]


def convert(type_name: str, raw: Bytes, shape: tuple[int, int]) -> Matrix:
    """Convert the blocks `raw`, a flat array of a tensor's bytes, to a matrix of `shape` [N, C].

    Float types become views of `raw`. The caller must have checked the type, the size, and that C
    is a multiple of the block size. Raises ValueError for numbers that no layout can represent.
    """
    return CONVERTERS[type_name](raw, shape)


def _f32(raw: Bytes, shape: tuple[int, int]) -> Dense:
    return Dense(raw.view("<f4").reshape(shape), "f32")


def _f16(raw: Bytes, shape: tuple[int, int]) -> Dense:
    return Dense(raw.view("<f2").reshape(shape), "f16")


def _bf16(raw: Bytes, shape: tuple[int, int]) -> Dense:
    return Dense(raw.view("<u2").reshape(shape), "bf16")


def _q4_0(raw: Bytes, shape: tuple[int, int]) -> Affine:
    blocks = raw.view(Q4_0)
    q = _fill(blocks, 16, _pack_nibbles_16)
    return Affine(4, 32, q.reshape(shape[0], -1), _column(blocks, "d", shape), zero_point=8)


def _q4_1(raw: Bytes, shape: tuple[int, int]) -> Affine:
    blocks = raw.view(Q4_1)
    q = _fill(blocks, 16, _pack_nibbles_16)
    minimum = _column(blocks, "m", shape)
    return Affine(4, 32, q.reshape(shape[0], -1), _column(blocks, "d", shape), minimum)


def _q5_0(raw: Bytes, shape: tuple[int, int]) -> Affine:
    blocks = raw.view(Q5_0)
    q = _fill(blocks, 32, _widen_5_bits)
    return Affine(8, 32, q.reshape(shape), _column(blocks, "d", shape), zero_point=16)


def _q5_1(raw: Bytes, shape: tuple[int, int]) -> Affine:
    blocks = raw.view(Q5_1)
    q = _fill(blocks, 32, _widen_5_bits)
    return Affine(8, 32, q.reshape(shape), _column(blocks, "d", shape), _column(blocks, "m", shape))


def _q8_0(raw: Bytes, shape: tuple[int, int]) -> Affine:
    blocks = raw.view(Q8_0)
    q = _fill(blocks, 32, _flip_signs)
    return Affine(8, 32, q.reshape(shape), _column(blocks, "d", shape), zero_point=128)


def _q2_k(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q2_K. Each byte of `scales` belongs to 16 elements: the low nibble multiplies `d`,
    the high nibble multiplies -`dmin`."""
    blocks = raw.view(Q2_K)
    q = _fill(blocks, 128, _pack_2_bits_k)
    both: Bytes = np.ascontiguousarray(blocks["scales"]).view(np.uint8)
    multipliers = both & np.uint8(15), both >> np.uint8(4)
    return _two_level(4, 16, blocks, q.reshape(shape[0], -1), multipliers)


def _q3_k(raw: Bytes, shape: tuple[int, int]) -> Affine:
    blocks = raw.view(Q3_K)
    q = _fill(blocks, 128, _pack_3_bits_k).reshape(shape[0], -1)
    scale = _signed_multipliers(blocks)
    d = _column(blocks, "d", shape)
    return Affine(4, 16, q, scale.reshape(shape[0], -1), zero_point=4, super_scale=d)


def _q4_k(raw: Bytes, shape: tuple[int, int]) -> Affine:
    blocks = raw.view(Q4_K)
    q = _fill(blocks, 128, _pack_nibbles_32)
    return _two_level(4, 32, blocks, q.reshape(shape[0], -1), _multipliers(blocks))


def _q5_k(raw: Bytes, shape: tuple[int, int]) -> Affine:
    blocks = raw.view(Q5_K)
    q = _fill(blocks, 256, _widen_5_bits_k)
    return _two_level(8, 32, blocks, q.reshape(shape), _multipliers(blocks))


def _q6_k(raw: Bytes, shape: tuple[int, int]) -> Affine:
    blocks = raw.view(Q6_K)
    q = _fill(blocks, 256, _widen_6_bits_k)
    scale = np.ascontiguousarray(blocks["scales"]).view(np.int8).reshape(shape[0], -1)
    d = _column(blocks, "d", shape)
    return Affine(8, 16, q.reshape(shape), scale, zero_point=32, super_scale=d)


def _iq4_nl(raw: Bytes, shape: tuple[int, int]) -> Affine:
    blocks = raw.view(IQ4_NL)
    q = _fill(blocks, 32, _look_up_iq4)
    return Affine(8, 32, q.reshape(shape), _column(blocks, "d", shape), zero_point=128)


def _mxfp4(raw: Bytes, shape: tuple[int, int]) -> Affine:
    blocks = raw.view(MXFP4)
    q = _fill(blocks, 32, _look_up_float4)
    return mxfp4_matrix(q.reshape(shape), np.ascontiguousarray(blocks["e"]).reshape(shape[0], -1))


def _iq4_xs(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert IQ4_XS. Each 32 elements have a 6-bit multiplier of `d`, biased by 32. `low` contains
    its low four bits, `high` its top two bits."""
    blocks = raw.view(IQ4_XS)
    q = _fill(blocks, 256, _look_up_iq4)
    low = np.ascontiguousarray(blocks["low"]).view(np.uint8).reshape(-1, 4, 1)
    scale = (low >> np.array([0, 4], np.uint8) & 15).reshape(-1, 8)
    scale |= ((blocks["high"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3) << 4).astype(
        np.uint8
    )
    signed = (scale - np.uint8(32)).view(np.int8).reshape(shape[0], -1)
    d = _column(blocks, "d", shape)
    return Affine(8, 32, q.reshape(shape), signed, zero_point=128, super_scale=d)


CONVERTERS: dict[str, Callable[[Bytes, tuple[int, int]], Matrix]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}


def _fill(blocks: npt.NDArray[np.void], bytes_per_block: int, fill: Fill) -> Bytes:
    """Return the quants of all blocks as one flat array. `fill(piece, out)` converts the quants of
    a piece of the blocks and writes them to `out`."""
    out = np.empty(len(blocks) * bytes_per_block, np.uint8)
    step = PIECE_BYTES // bytes_per_block
    for start in range(0, len(blocks), step):
        piece = blocks[start : start + step]
        first = start * bytes_per_block
        fill(piece, out[first : first + len(piece) * bytes_per_block])
    return out


def _column(
    blocks: npt.NDArray[np.void], field: str, shape: tuple[int, int]
) -> npt.NDArray[np.float16]:
    """Return the float16 `field` of each block as [N, blocks per row]."""
    column: npt.NDArray[np.float16] = np.ascontiguousarray(blocks[field])
    return column.reshape(shape[0], -1)


def _lanes(blocks: npt.NDArray[np.void], field: str) -> Lanes:
    return np.ascontiguousarray(blocks[field]).view(np.uint64)


def _nibbles(blocks: npt.NDArray[np.void]) -> tuple[Lanes, Lanes]:
    """Return the low nibbles and the high nibbles of `qs`, one nibble per byte."""
    low = _lanes(blocks, "qs")
    high = low >> np.uint64(4)
    high &= LOW_NIBBLES
    return low & LOW_NIBBLES, high


def _join_pairs(nibbles: Lanes) -> Bytes:
    """Pack each pair of bytes (a, b), both in 0..15, into one byte a | b << 4. Modifies
    `nibbles`."""
    nibbles |= nibbles >> np.uint64(4)
    return nibbles.view(np.uint16).astype(np.uint8)  # drops the byte of b


def _pack_nibbles_16(blocks: npt.NDArray[np.void], out: Bytes) -> None:
    """Write the nibbles of each block in the order of the elements: the low nibbles of its bytes
    are elements 0..15, the high nibbles 16..31."""
    low, high = _nibbles(blocks)
    halves = out.view(np.uint64).reshape(-1, 2)
    halves[:, 0] = _join_pairs(low).view(np.uint64)
    halves[:, 1] = _join_pairs(high).view(np.uint64)


def _pack_nibbles_32(blocks: npt.NDArray[np.void], out: Bytes) -> None:
    """Write the nibbles of each 32 bytes in the order of the elements: the low nibbles are elements
    0..31, the high nibbles 32..63."""
    low, high = _nibbles(blocks)
    halves = out.view("V16").reshape(-1, 2)
    halves[:, 0] = _join_pairs(low).view("V16")
    halves[:, 1] = _join_pairs(high).view("V16")


def _widen_5_bits(blocks: npt.NDArray[np.void], out: Bytes) -> None:
    """Write 5-bit quants, one byte per element, in the order of `_pack_nibbles_16`. Bit e of `qh`
    is the fifth bit of element e."""
    low, high = _nibbles(blocks)
    fifth = np.unpackbits(np.ascontiguousarray(blocks["qh"]).view(np.uint8), bitorder="little")
    fifth <<= 4
    halves = out.view("V16").reshape(-1, 2)
    halves[:, 0] = low.view("V16")
    halves[:, 1] = high.view("V16")
    out |= fifth


def _look_up_iq4(blocks: npt.NDArray[np.void], out: Bytes) -> None:
    _look_up_nibbles(blocks, out, IQ4_VALUES)


def _look_up_float4(blocks: npt.NDArray[np.void], out: Bytes) -> None:
    _look_up_nibbles(blocks, out, FLOAT4_VALUES)


def _look_up_nibbles(blocks: npt.NDArray[np.void], out: Bytes, table: Bytes) -> None:
    """Write `table[nibble]`, one byte per element, for each 16 bytes of `qs` in the order of
    `_pack_nibbles_16`."""
    low, high = _nibbles(blocks)
    halves = out.view("V16").reshape(-1, 2)
    halves[:, 0] = table.take(low.view(np.uint8)).view("V16")
    halves[:, 1] = table.take(high.view(np.uint8)).view("V16")


def _flip_signs(blocks: npt.NDArray[np.void], out: Bytes) -> None:
    np.bitwise_xor(_lanes(blocks, "qs"), SIGN_BITS, out=out.view(np.uint64))


def _two_bits_k(blocks: npt.NDArray[np.void]) -> Lanes:
    """Unpack the bit pairs of `qs` to one byte each. Each 32 bytes hold four runs of 32
    elements."""
    pairs = _shifted_runs(np.ascontiguousarray(blocks["qs"]).view("V32"), range(0, 8, 2))
    pairs &= LOW_PAIRS
    return pairs


def _pack_2_bits_k(blocks: npt.NDArray[np.void], out: Bytes) -> None:
    out[:] = _join_pairs(_two_bits_k(blocks))


def _pack_3_bits_k(blocks: npt.NDArray[np.void], out: Bytes) -> None:
    """Pack 3-bit quants as nibbles. The low two bits come from `qs`; bit s of byte l of `qh` is the
    third bit of element l of run s."""
    third = _shifted_runs(blocks["qh"], range(8))
    third &= LOW_BITS
    third <<= np.uint64(2)
    third |= _two_bits_k(blocks)
    out[:] = _join_pairs(third)


def _widen_5_bits_k(blocks: npt.NDArray[np.void], out: Bytes) -> None:
    """Write 5-bit quants, one byte per element, in the order of `_pack_nibbles_32`. Bit s of byte l
    of `qh` is the fifth bit of element l of run s."""
    low, high = _nibbles(blocks)
    runs = out.view("V32").reshape(-1, 4, 2)
    runs[:, :, 0] = low.view("V32").reshape(-1, 4)
    runs[:, :, 1] = high.view("V32").reshape(-1, 4)
    fifth = _shifted_runs(blocks["qh"], range(8))
    fifth &= LOW_BITS
    fifth <<= np.uint64(4)
    lanes = out.view(np.uint64)
    lanes |= fifth


def _widen_6_bits_k(blocks: npt.NDArray[np.void], out: Bytes) -> None:
    """Unpack the quants of Q6_K, one byte per element. Each half of a block (128 elements) has 64
    bytes `ql` with the low four bits, low nibbles first, and 32 bytes `qh` with the top two bits,
    whose bit pairs belong to four runs of 32 elements."""
    nibbles = _lanes(blocks, "ql")
    halves = out.view("V64").reshape(-1, 2)
    halves[:, 0] = (nibbles & LOW_NIBBLES).view("V64")
    nibbles >>= np.uint64(4)
    nibbles &= LOW_NIBBLES
    halves[:, 1] = nibbles.view("V64")
    upper = _shifted_runs(np.ascontiguousarray(blocks["qh"]).view("V32"), range(0, 8, 2))
    upper &= LOW_PAIRS
    upper <<= np.uint64(4)
    lanes = out.view(np.uint64)
    lanes |= upper


def _shifted_runs(items: npt.NDArray[np.void], shifts: range) -> Lanes:
    """Return each 32-byte item once per entry of `shifts`, shifted right by that many bits; the
    result is flat, item by item. Bits cross into the next lower byte; the caller must mask them."""
    repeated = np.repeat(items, len(shifts)).view(np.uint64)
    amounts = np.repeat(np.array(shifts, np.uint64), 4)
    repeated.reshape(-1, len(amounts))[:] >>= amounts
    return repeated


def _two_level(
    bits: Literal[4, 8],
    group: Literal[16, 32],
    blocks: npt.NDArray[np.void],
    q: Bytes,
    multipliers: tuple[Bytes, Bytes],
) -> Affine:
    """Return a K-quant matrix with two levels of scales and minima. `multipliers`: for each group,
    the multiplier of `d` (scale) and the multiplier of -`dmin` (minimum)."""
    shape = q.shape[0], -1
    scale, minimum = multipliers
    return Affine(
        bits,
        group,
        q,
        scale.reshape(shape),
        minimum.reshape(shape),
        super_scale=_column(blocks, "d", shape),
        super_minimum=np.negative(_column(blocks, "dmin", shape)),
    )


def _words(blocks: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
    """Return the 12 bytes per block that contain 6-bit multipliers, as [blocks, 3] words."""
    return np.ascontiguousarray(blocks["scales"]).view("<u4").reshape(-1, 3)


def _multipliers(blocks: npt.NDArray[np.void]) -> tuple[Bytes, Bytes]:
    """Unpack the eight scales and eight minima of 6 bits in a Q4_K or Q5_K block from 12 bytes,
    which are three words a, b, c of four bytes each.

    The low six bits in the bytes of a are the first four scales, in the bytes of b the first four
    minima. The other four have their low four bits in c (scales in the low nibbles, minima in the
    high nibbles) and their top two bits in a and b.
    """
    words = _words(blocks)
    a, b, c = words[:, 0], words[:, 1], words[:, 2]
    six, four, two = np.uint32(0x3F3F3F3F), np.uint32(0x0F0F0F0F), np.uint32(0x30303030)
    scale = np.empty((len(words), 2), np.uint32)
    scale[:, 0] = a & six
    scale[:, 1] = (c & four) | ((a >> np.uint32(2)) & two)
    minimum = np.empty((len(words), 2), np.uint32)
    minimum[:, 0] = b & six
    minimum[:, 1] = ((c >> np.uint32(4)) & four) | ((b >> np.uint32(2)) & two)
    return scale.view(np.uint8), minimum.view(np.uint8)


def _signed_multipliers(blocks: npt.NDArray[np.void]) -> npt.NDArray[np.int8]:
    """Unpack the 16 multipliers of 6 bits in a Q3_K block, biased by 32, from 12 bytes, which are
    three words a, b, c of four bytes each.

    a and b contain the low four bits (low nibbles: the first eight multipliers), the bit pairs of c
    the top two bits.
    """
    words = _words(blocks)
    a, b, c = words[:, 0], words[:, 1], words[:, 2]
    four, two = np.uint32(0x0F0F0F0F), np.uint32(0x30303030)
    scale = np.empty((len(words), 4), np.uint32)
    scale[:, 0] = (a & four) | ((c << np.uint32(4)) & two)
    scale[:, 1] = (b & four) | ((c << np.uint32(2)) & two)
    scale[:, 2] = ((a >> np.uint32(4)) & four) | (c & two)
    scale[:, 3] = ((b >> np.uint32(4)) & four) | ((c >> np.uint32(2)) & two)
    signed: npt.NDArray[np.int8] = (scale.view(np.uint8) - np.uint8(32)).view(np.int8)
    return signed
