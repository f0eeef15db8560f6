"""Converts the GGML types whose quants are rows of a codebook: IQ1, IQ2 and IQ3.

A weight is d * multiplier * integer / 8 (IQ1, IQ2), / 4 (IQ3_XXS) or / 1 (IQ3_S), with 8-bit
integers of at most 16 values, of which a CPU stores 4-bit indices. If each d, divided by 8, is a
float16, the scales are multipliers of it, otherwise they are float32. The integers of IQ1 and IQ3_S
are odd; a GPU holds them in 4 bits, with minima (`has_half_steps`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Affine
from penstock.quant.gguf.block_arrays import Blocks, Bytes, field_bytes, fill_quants
from penstock.quant.gguf.codebooks import (
    IQ2_LEVELS,
    IQ3_S_LEVELS,
    IQ3_XXS_LEVELS,
    BookName,
    codebook,
)

IQ1_S = np.dtype([("d", "<f2"), ("qs", "V32"), ("qh", "V16")])
IQ1_M = np.dtype([("qs", "V32"), ("qh", "V16"), ("scales", "V8")])
IQ2_XXS = np.dtype([("d", "<f2"), ("qs", "V64")])
IQ2_XS = np.dtype([("d", "<f2"), ("qs", "V64"), ("scales", "V8")])
IQ2_S = np.dtype([("d", "<f2"), ("qs", "V32"), ("signs", "V32"), ("qh", "V8"), ("scales", "V8")])
IQ3_XXS = np.dtype([("d", "<f2"), ("qs", "V64"), ("signs", "V32")])
IQ3_S = np.dtype([("d", "<f2"), ("qs", "V64"), ("qh", "V8"), ("signs", "V32"), ("scales", "V4")])

Words = npt.NDArray[np.uint64]

_IQ1_ZERO = 9
_IQ2_ZERO = max(IQ2_LEVELS)
_IQ3_S_ZERO = max(IQ3_S_LEVELS)
_IQ3_XXS_ZERO = max(IQ3_XXS_LEVELS) // 2


def _sign_rows(codes: Bytes) -> Words:
    """Return for each byte of eight signs, the lowest first, eight signed bytes 1 or -1."""
    bits = np.unpackbits(codes[:, None], axis=1, bitorder="little")
    return (1 - 2 * bits.astype(np.int8)).view(np.uint64)[:, 0]


_SIGNS = _sign_rows(np.arange(256, dtype=np.uint8))
# Seven signs are stored; the eighth makes the number of minus signs even.
_EVEN_SIGNS = _SIGNS[[code | code.bit_count() % 2 << 7 for code in range(128)]]


def iq2_xxs(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert IQ2_XXS. Each 32 elements have four bytes, which choose rows of the codebook, and a
    word with four times seven signs and the 4-bit multiplier."""
    blocks = raw.view(IQ2_XXS)
    q = fill_quants(blocks, 256, _fill_iq2_xxs)
    last = _words(blocks, "qs").reshape(-1, 2)[:, 1]
    return _eight_bits(blocks["d"], shape, 32, q, _IQ2_ZERO, last >> np.uint32(28), 8)


def _fill_iq2_xxs(blocks: Blocks, out: Bytes) -> None:
    words = _words(blocks, "qs").reshape(-1, 2)
    rows = np.ascontiguousarray(words[:, 0]).view(np.uint8)
    _write_signed(out, _book("IQ2_XXS"), rows, _even_signs(words[:, 1]), _IQ2_ZERO)


def iq2_xs(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert IQ2_XS. Each 8 elements have 9 bits that choose a row and 7 signs, each 16 a 4-bit
    multiplier."""
    blocks = raw.view(IQ2_XS)
    q = fill_quants(blocks, 256, _fill_iq2_xs)
    return _eight_bits(blocks["d"], shape, 16, q, _IQ2_ZERO, _halves(blocks), 8)


def _fill_iq2_xs(blocks: Blocks, out: Bytes) -> None:
    words = np.ascontiguousarray(blocks["qs"]).view("<u2")
    signs = _EVEN_SIGNS.take(words >> np.uint16(9))
    _write_signed(out, _book("IQ2_XS"), words & np.uint16(511), signs, _IQ2_ZERO)


def iq2_s(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert IQ2_S. Each 8 elements have a byte and two bits of `qh` that choose a row, and 8
    signs; each 16 have a 4-bit multiplier."""
    blocks = raw.view(IQ2_S)
    q = fill_quants(blocks, 256, _fill_iq2_s)
    return _eight_bits(blocks["d"], shape, 16, q, _IQ2_ZERO, _halves(blocks), 8)


def _fill_iq2_s(blocks: Blocks, out: Bytes) -> None:
    rows = _joined(blocks, range(0, 8, 2), 3)
    signs = _SIGNS.take(field_bytes(blocks, "signs"))
    _write_signed(out, _book("IQ2_S"), rows, signs, _IQ2_ZERO)


def iq3_xxs(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert IQ3_XXS, whose integers are all even. Each 32 elements have eight bytes, which choose
    rows of the codebook, and a word as in IQ2_XXS."""
    blocks = raw.view(IQ3_XXS)
    q = fill_quants(blocks, 256, _fill_iq3_xxs)
    multiplier = _words(blocks, "signs") >> np.uint32(28)
    return _eight_bits(blocks["d"], shape, 32, q, _IQ3_XXS_ZERO, multiplier, 2)


def _fill_iq3_xxs(blocks: Blocks, out: Bytes) -> None:
    halved = codebook("IQ3_XXS", tuple(level // 2 for level in IQ3_XXS_LEVELS)).view(np.uint32)
    signs = _even_signs(_words(blocks, "signs"))
    _write_signed(out, halved[:, 0], field_bytes(blocks, "qs"), signs, _IQ3_XXS_ZERO)


def iq3_s(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert IQ3_S, whose integers are the odd ones from -15 to 15. Each 4 elements have a byte
    and a bit of `qh` that choose a row; each 8 have 8 signs, each 32 a 4-bit multiplier."""
    blocks = raw.view(IQ3_S)
    q = fill_quants(blocks, 256, _fill_iq3_s)
    return _eight_bits(blocks["d"], shape, 32, q, _IQ3_S_ZERO, _halves(blocks), 1)


def _fill_iq3_s(blocks: Blocks, out: Bytes) -> None:
    rows = _joined(blocks, range(8), 1)
    book = codebook("IQ3_S", IQ3_S_LEVELS).view(np.uint32)[:, 0]
    signs = _SIGNS.take(field_bytes(blocks, "signs"))
    _write_signed(out, book, rows, signs, _IQ3_S_ZERO)


def iq1_s(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert IQ1_S, whose integers are -9, -7, -1, 1, 7 and 9. Each 8 elements have a byte and
    three bits of `qh` that choose a row; the other bits of a word of `qh` are the multiplier and
    the direction in which 32 elements are moved."""
    blocks = raw.view(IQ1_S)
    q = fill_quants(blocks, 256, _fill_iq1_s)
    multiplier = _qh_words(blocks) >> np.uint16(12) & np.uint16(7)
    return _eight_bits(blocks["d"], shape, 32, q, _IQ1_ZERO, multiplier, 8)


def _fill_iq1_s(blocks: Blocks, out: Bytes) -> None:
    words = _qh_words(blocks)
    upper = words[:, None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)
    rows = field_bytes(blocks, "qs").reshape(-1, 4) | upper << np.uint16(8)
    _write_moved(out, rows, np.repeat(words >> np.uint16(15), 4))


def iq1_m(raw: Bytes, shape: tuple[int, int]) -> Affine:
    """Convert IQ1_M, whose integers are those of IQ1_S. Each 8 elements have a byte and a nibble of
    `qh`: three bits that choose a row, and the direction. A word of `scales` has four multipliers
    of 16 elements each, and a quarter of d."""
    blocks = raw.view(IQ1_M)
    q = fill_quants(blocks, 256, _fill_iq1_m)
    words = np.ascontiguousarray(blocks["scales"]).view("<u2").reshape(-1, 4)
    quarters = words >> np.uint16(12) << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.bitwise_or.reduce(quarters, axis=1).view(np.float16)
    multiplier = words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)
    return _eight_bits(d, shape, 16, q, _IQ1_ZERO, multiplier, 8)


def _fill_iq1_m(blocks: Blocks, out: Bytes) -> None:
    upper = field_bytes(blocks, "qh")[:, :, None] >> np.array([0, 4], np.uint8)
    upper = upper.astype(np.uint16).reshape(len(blocks), -1)
    rows = field_bytes(blocks, "qs") | (upper & np.uint16(7)) << np.uint16(8)
    _write_moved(out, rows, upper >> np.uint16(3) & np.uint16(1))


def _book(name: BookName) -> Words:
    """Return a codebook of IQ2, a word per row."""
    return codebook(name, IQ2_LEVELS).view(np.uint64)[:, 0]


def _words(blocks: Blocks, field: str) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(blocks[field]).view("<u4")


def _qh_words(blocks: Blocks) -> npt.NDArray[np.uint16]:
    return np.ascontiguousarray(blocks["qh"]).view("<u2")


def _halves(blocks: Blocks) -> Bytes:
    """Return the nibbles of `scales`, the low nibble of a byte first."""
    both = field_bytes(blocks, "scales")[:, :, None]
    halves: Bytes = both >> np.array([0, 4], np.uint8) & np.uint8(15)
    return halves


def _joined(blocks: Blocks, shifts: range, mask: int) -> npt.NDArray[np.uint16]:
    """Return the row of each entry of `qs`: its byte, and above it the bits `qh` >> shift & `mask`
    of the byte of `qh` that belongs to as many entries as there are shifts."""
    upper = field_bytes(blocks, "qh")[:, :, None] >> np.array(shifts, np.uint8) & np.uint8(mask)
    upper = upper.astype(np.uint16).reshape(len(blocks), -1)
    rows: npt.NDArray[np.uint16] = field_bytes(blocks, "qs") | upper << np.uint16(8)
    return rows


def _even_signs(words: npt.NDArray[np.uint32]) -> Words:
    """Return the signs of 32 elements each from words with four times seven signs."""
    codes = words[:, None] >> np.arange(0, 28, 7, dtype=np.uint32) & np.uint32(127)
    signs: Words = _EVEN_SIGNS.take(codes)
    return signs


def _write_signed(
    out: Bytes, book: npt.NDArray[Any], rows: npt.NDArray[Any], signs: Words, zero: int
) -> None:
    """Write the rows of the codebook with their signs, plus `zero`."""
    magnitudes = book.take(rows).reshape(-1).view(np.int8)
    np.multiply(magnitudes, signs.reshape(-1).view(np.int8), out=out.view(np.int8))
    out += np.uint8(zero)


def _write_moved(out: Bytes, rows: npt.NDArray[np.uint16], down: npt.NDArray[np.uint16]) -> None:
    """Write the integers of IQ1 plus 9: eight times the rows of the codebook, plus one, or minus
    one if `down` is 1."""
    book = codebook("IQ1", (1, 9, 17)).view(np.uint64)[:, 0]  # 8 * level + 9
    moved = out.reshape(-1, 8)
    moved[:] = book.take(rows).reshape(-1, 1).view(np.uint8)
    moved += (1 - 2 * down.astype(np.int8)).view(np.uint8).reshape(-1, 1)


def _group_scales(
    d: npt.NDArray[Any], shape: tuple[int, int], multiplier: npt.NDArray[Any], divisor: int
) -> npt.NDArray[np.float32]:
    """Return d * (2 * multiplier + 1) / divisor per group, which has at most 16 significant
    bits."""
    odd = (2 * multiplier + 1).astype(np.float32).reshape(len(d), -1)
    with np.errstate(invalid="ignore"):  # the caller refuses what is not finite
        wide = d.astype(np.float32) * np.float32(1 / divisor)
        scale: npt.NDArray[np.float32] = wide[:, None] * odd
    return scale.reshape(shape[0], -1)


def _eight_bits(
    d: npt.NDArray[Any],
    shape: tuple[int, int],
    group: int,
    q: Bytes,
    zero: int,
    multiplier: npt.NDArray[Any],
    divisor: int,
) -> Affine:
    """Return the matrix d * (2 * multiplier + 1) / divisor * (q - zero)."""
    q = q.reshape(shape)
    with np.errstate(invalid="ignore"):  # the caller refuses what is not finite
        unit = d / np.float16(divisor)
    if np.array_equal(unit * np.float16(divisor), d, equal_nan=True):
        odd = (2 * multiplier + 1).astype(np.int8).reshape(shape[0], -1)
        return Affine(8, group, q, odd, None, zero, unit.reshape(shape[0], -1))
    return Affine(8, group, q, _group_scales(d, shape, multiplier, divisor), zero_point=zero)
