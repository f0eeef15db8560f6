"""Converts the Q types of GGML exactly into the layouts of the kernels.

A GGML block stores its scale next to its quants; the kernels need scales and quants in separate
arrays, and nibbles in the order of the elements. The conversion is whole-array arithmetic on 64-bit
integers, during which numpy releases the GIL, in pieces that fit in the L2 cache.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.kernels.regroup import split_groups
from penstock.kernels.weights import Affine
from penstock.quant.gguf.block_arrays import (
    LOW_BITS,
    LOW_NIBBLES,
    LOW_PAIRS,
    Blocks,
    Bytes,
    bit_pairs,
    column,
    fill_quants,
    join_pairs,
    lanes,
    nibbles,
    shifted_runs,
)
from penstock.quant.weight_slices import ACTIVATION_GROUP

SIGN_BITS = np.uint64(0x8080808080808080)

# The fields are raw bytes (V16), not small arrays, so that copying an item is one move.
Q4_0 = np.dtype([("d", "<f2"), ("qs", "V16")])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "V16")])
Q5_0 = np.dtype([("d", "<f2"), ("qh", "V4"), ("qs", "V16")])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "V4"), ("qs", "V16")])
Q8_0 = np.dtype([("d", "<f2"), ("qs", "V32")])
Q8_K = np.dtype([("d", "<f4"), ("qs", "V256"), ("sums", "V32")])
Q2_K = np.dtype([("scales", "V16"), ("qs", "V64"), ("d", "<f2"), ("dmin", "<f2")])
Q3_K = np.dtype([("qh", "V32"), ("qs", "V64"), ("scales", "V12"), ("d", "<f2")])
Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "V12"), ("qs", "V128")])
Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "V12"), ("qh", "V32"), ("qs", "V128")])
Q6_K = np.dtype([("ql", "V128"), ("qh", "V64"), ("scales", "V16"), ("d", "<f2")])


def q4_0(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q4_0."""
    blocks = raw.view(Q4_0)
    q = fill_quants(blocks, 16, _pack_nibbles_16)
    return Affine(4, 32, q.reshape(shape[0], -1), column(blocks, "d", shape), zero_point=8)


def q4_1(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q4_1."""
    blocks = raw.view(Q4_1)
    q = fill_quants(blocks, 16, _pack_nibbles_16)
    minimum = column(blocks, "m", shape)
    return Affine(4, 32, q.reshape(shape[0], -1), column(blocks, "d", shape), minimum)


def q5_0(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q5_0."""
    blocks = raw.view(Q5_0)
    q = fill_quants(blocks, 32, _widen_5_bits)
    return Affine(8, 32, q.reshape(shape), column(blocks, "d", shape), zero_point=16)


def q5_1(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q5_1."""
    blocks = raw.view(Q5_1)
    q = fill_quants(blocks, 32, _widen_5_bits)
    return Affine(8, 32, q.reshape(shape), column(blocks, "d", shape), column(blocks, "m", shape))


def q8_0(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q8_0."""
    blocks = raw.view(Q8_0)
    q = fill_quants(blocks, 32, _flip_signs)
    return Affine(8, 32, q.reshape(shape), column(blocks, "d", shape), zero_point=128)


def q2_k(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q2_K. Each byte of `scales` belongs to 16 elements: the low nibble multiplies `d`,
    the high nibble multiplies -`dmin`."""
    blocks = raw.view(Q2_K)
    q = fill_quants(blocks, 128, _pack_2_bits_k)
    both: Bytes = np.ascontiguousarray(blocks["scales"]).view(np.uint8)
    multipliers = both & np.uint8(15), both >> np.uint8(4)
    return _two_level(4, 16, blocks, q.reshape(shape[0], -1), multipliers)


def q3_k(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q3_K."""
    blocks = raw.view(Q3_K)
    q = fill_quants(blocks, 128, _pack_3_bits_k).reshape(shape[0], -1)
    scale = _signed_multipliers(blocks)
    d = column(blocks, "d", shape)
    return Affine(4, 16, q, scale.reshape(shape[0], -1), zero_point=4, super_scale=d)


def q4_k(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q4_K."""
    blocks = raw.view(Q4_K)
    q = fill_quants(blocks, 128, _pack_nibbles_32)
    return _two_level(4, 32, blocks, q.reshape(shape[0], -1), _multipliers(blocks))


def q5_k(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q5_K."""
    blocks = raw.view(Q5_K)
    q = fill_quants(blocks, 256, _widen_5_bits_k)
    return _two_level(8, 32, blocks, q.reshape(shape), _multipliers(blocks))


def q6_k(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q6_K."""
    blocks = raw.view(Q6_K)
    q = fill_quants(blocks, 256, _widen_6_bits_k)
    scale = np.ascontiguousarray(blocks["scales"]).view(np.int8).reshape(shape[0], -1)
    d = column(blocks, "d", shape)
    return Affine(8, 16, q.reshape(shape), scale, zero_point=32, super_scale=d)


def q8_k(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert Q8_K. Its sums of 16 quants each are not needed. Scales of blocks are repeated for
    groups of 32, in steps of which ranks divide columns."""
    blocks = raw.view(Q8_K)
    q = fill_quants(blocks, 256, _flip_signs)
    d = np.ascontiguousarray(blocks["d"]).reshape(shape[0], -1)
    whole = Affine(8, 256, q.reshape(shape), d, zero_point=128)
    return split_groups(whole, ACTIVATION_GROUP)


def _pack_nibbles_16(blocks: Blocks, out: Bytes) -> None:
    """Write the nibbles of each block in the order of the elements: the low nibbles of its bytes
    are elements 0..15, the high nibbles 16..31."""
    low, high = nibbles(blocks)
    halves = out.view(np.uint64).reshape(-1, 2)
    halves[:, 0] = join_pairs(low).view(np.uint64)
    halves[:, 1] = join_pairs(high).view(np.uint64)


def _pack_nibbles_32(blocks: Blocks, out: Bytes) -> None:
    """Write the nibbles of each 32 bytes in the order of the elements: the low nibbles are elements
    0..31, the high nibbles 32..63."""
    low, high = nibbles(blocks)
    halves = out.view("V16").reshape(-1, 2)
    halves[:, 0] = join_pairs(low).view("V16")
    halves[:, 1] = join_pairs(high).view("V16")


def _widen_5_bits(blocks: Blocks, out: Bytes) -> None:
    """Write 5-bit quants, one byte per element, in the order of `_pack_nibbles_16`. Bit e of `qh`
    is the fifth bit of element e."""
    low, high = nibbles(blocks)
    fifth = np.unpackbits(np.ascontiguousarray(blocks["qh"]).view(np.uint8), bitorder="little")
    fifth <<= 4
    halves = out.view("V16").reshape(-1, 2)
    halves[:, 0] = low.view("V16")
    halves[:, 1] = high.view("V16")
    out |= fifth


def _flip_signs(blocks: Blocks, out: Bytes) -> None:
    np.bitwise_xor(lanes(blocks, "qs"), SIGN_BITS, out=out.view(np.uint64))


def _pack_2_bits_k(blocks: Blocks, out: Bytes) -> None:
    out[:] = join_pairs(bit_pairs(blocks))


def _pack_3_bits_k(blocks: Blocks, out: Bytes) -> None:
    """Pack 3-bit quants as nibbles. The low two bits come from `qs`; bit s of byte l of `qh` is the
    third bit of element l of run s."""
    third = shifted_runs(blocks["qh"], range(8))
    third &= LOW_BITS
    third <<= np.uint64(2)
    third |= bit_pairs(blocks)
    out[:] = join_pairs(third)


def _widen_5_bits_k(blocks: Blocks, out: Bytes) -> None:
    """Write 5-bit quants, one byte per element, in the order of `_pack_nibbles_32`. Bit s of byte l
    of `qh` is the fifth bit of element l of run s."""
    low, high = nibbles(blocks)
    runs = out.view("V32").reshape(-1, 4, 2)
    runs[:, :, 0] = low.view("V32").reshape(-1, 4)
    runs[:, :, 1] = high.view("V32").reshape(-1, 4)
    fifth = shifted_runs(blocks["qh"], range(8))
    fifth &= LOW_BITS
    fifth <<= np.uint64(4)
    whole = out.view(np.uint64)
    whole |= fifth


def _widen_6_bits_k(blocks: Blocks, out: Bytes) -> None:
    """Unpack the quants of Q6_K, one byte per element. Each half of a block (128 elements) has 64
    bytes `ql` with the low four bits, low nibbles first, and 32 bytes `qh` with the top two bits,
    whose bit pairs belong to four runs of 32 elements."""
    words = lanes(blocks, "ql")
    halves = out.view("V64").reshape(-1, 2)
    halves[:, 0] = (words & LOW_NIBBLES).view("V64")
    words >>= np.uint64(4)
    words &= LOW_NIBBLES
    halves[:, 1] = words.view("V64")
    upper = shifted_runs(np.ascontiguousarray(blocks["qh"]).view("V32"), range(0, 8, 2))
    upper &= LOW_PAIRS
    upper <<= np.uint64(4)
    whole = out.view(np.uint64)
    whole |= upper


def _two_level(
    bits: Literal[4, 8],
    group: Literal[16, 32],
    blocks: Blocks,
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
        super_scale=column(blocks, "d", shape),
        super_minimum=np.negative(column(blocks, "dmin", shape)),
    )


def _words(blocks: Blocks) -> npt.NDArray[np.uint32]:
    """Return the 12 bytes per block that contain 6-bit multipliers, as [blocks, 3] words."""
    return np.ascontiguousarray(blocks["scales"]).view("<u4").reshape(-1, 3)


def _multipliers(blocks: Blocks) -> tuple[Bytes, Bytes]:
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


def _signed_multipliers(blocks: Blocks) -> npt.NDArray[np.int8]:
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
