"""The layouts of AWQ: integers of 4 bits, or 5 to 7 bits, in groups, in the packings that its
kernels GEMM, GEMV and GEMV-fast read. That of its Marlin kernel is in `marlin_layouts`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from penstock.quant.affine import pack_nibbles, unpack
from penstock.quant.safetensors.layout import (
    FACTORS_BY_GROUP,
    FLOATS,
    WORD_TYPES,
    Arrays,
    Header,
    Layout,
    Numbers,
    Part,
    Shape,
    Size,
    even_grouping,
    integer_sample,
    minima_sample,
    turned,
)
from penstock.quant.safetensors.quantization_schemes import Grouping, LayoutName

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""GEMM packs 8 columns of the transposed matrix into a word: the column of each nibble, lowest
first."""
_FAST_ROWS = 4
_FAST_COLUMNS = 64
"""The rows and columns that GEMV-fast packs together."""


def unpack_reordered(words: npt.NDArray[np.generic], bits: int = 4) -> npt.NDArray[np.uint8]:
    """Unpack words [G, n] of integers of which each 8 are in the order AWQ_COLUMNS, into integers
    [G, 32 n / bits]."""
    stored = unpack(words, bits).reshape(len(words), -1, 8)
    ordered = np.empty_like(stored)
    ordered[:, :, AWQ_COLUMNS] = stored
    return ordered.reshape(len(words), -1)


def turned_nibbles(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Transpose the integers of words [C, N / 8], whose nibbles are in the order AWQ_COLUMNS, into
    bytes [N, C / 2] as in `Affine`. Each byte combines the nibbles of two neighbouring columns."""
    even, odd = words[0::2], words[1::2]
    low_bits, high_bits = np.uint32(0x0F0F0F0F), np.uint32(0xF0F0F0F0)
    q = np.empty((words.shape[1], 8, len(even)), np.uint8)
    halves = (
        (even & low_bits) | (odd & low_bits) << np.uint32(4),
        (even >> np.uint32(4)) & low_bits | (odd & high_bits),
    )
    for nibble, column in enumerate(AWQ_COLUMNS):
        q[:, column] = _bytes_of(halves[nibble % 2])[:, :, nibble // 2].T
    return q.reshape(8 * words.shape[1], -1)


def _bytes_of(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    return words.view(np.uint8).reshape(*words.shape, 4)


def _size(shape: Shape, grouping: Grouping, header: Header) -> Size:
    rows = shape[1] * 32 // grouping.bits
    if rows % 8:
        raise ValueError(f"has {rows} rows of {grouping.bits} bits; AWQ needs a multiple of 8")
    return Size(rows, shape[0], grouping)


def _grouping(header: Header) -> Grouping | None:
    quants, scales = header.shapes["qweight"], header.shapes.get("scales", ())
    if len(scales) != 2 or 0 in scales or quants[-1] * 32 % scales[1]:
        return None
    return even_grouping(quants[-1] * 32 // scales[1], quants[0], scales[0])


def _gemm(arrays: Arrays, size: Size) -> Numbers:
    """Convert GEMM, whose words pack 8 neighbouring rows. AutoRound also writes integers of 5 to 7
    bits, as a stream of bits with the same order of each 8."""
    bits = size.grouping.bits
    if bits == 4:
        q = turned_nibbles(arrays["qweight"].view(np.uint32))
    else:
        q = turned(unpack_reordered(arrays["qweight"], bits))
    zero = turned(unpack_reordered(arrays["qzeros"], bits))
    return Numbers(q, turned(arrays["scales"]), zero)


def _gemv_size(shape: Shape, grouping: Grouping, header: Header) -> Size:
    return Size(shape[0], shape[1] * 8, grouping)


def _padded_groups(size: Size) -> int:
    """Return the number of groups for which GEMV and GEMV-fast have a scale: words of 8 groups, and
    of these a multiple that depends on the group size."""
    words = -(-size.groups // 8)
    step = {64: 2, 32: 4}.get(size.group, 1)
    return 8 * step * -(-words // step)


def _gemv(arrays: Arrays, size: Size) -> Numbers:
    """Convert GEMV, whose words pack 8 neighbouring columns and 8 neighbouring zero points."""
    q = np.ascontiguousarray(arrays["qweight"]).view(np.uint8)
    zero = unpack(arrays["qzeros"], 4)[:, : size.groups]
    scale = np.ascontiguousarray(arrays["scales"][:, : size.groups])
    return Numbers(q, scale, np.ascontiguousarray(zero))


def _fast_size(shape: Shape, grouping: Grouping, header: Header) -> Size:
    if shape[1] % _FAST_COLUMNS:
        raise ValueError(
            f"has {shape[1]} columns; the packing gemv_fast needs a multiple of {_FAST_COLUMNS}"
        )
    return Size(shape[0] * _FAST_ROWS, shape[1], grouping)


def _gemv_fast(minima: str) -> Callable[[Arrays, Size], Numbers]:
    """Return the reader of GEMV-fast. A 16-bit word packs four entries of the stream of four rows
    that are interleaved by 64 columns; the columns of each 32 are in an order of their own. The
    tensor `minima` has -scale * zero, rounded to float16."""

    def read(arrays: Arrays, size: Size) -> Numbers:
        words = np.ascontiguousarray(arrays["qweight"]).view(np.uint16)
        nibbles = np.stack(
            [words >> np.uint16(4 * place) & np.uint16(15) for place in range(4)], -1
        )
        rows = nibbles.astype(np.uint8).reshape(
            size.rows // _FAST_ROWS, size.columns // _FAST_COLUMNS, _FAST_ROWS, _FAST_COLUMNS
        )
        rows = rows.transpose(0, 2, 1, 3).reshape(size.rows, -1, 4, 2, 4).transpose(0, 1, 2, 4, 3)
        q = rows.reshape(size.rows, -1, 4, 4, 2).transpose(0, 1, 3, 2, 4).reshape(size.rows, -1)
        scale, minimum = (turned(arrays[last][: size.groups]) for last in ("scales", minima))
        return Numbers(pack_nibbles(q), scale, minimum=minimum)

    return read


_GEMM_PARTS = {
    "qweight": Part(WORD_TYPES, lambda size: ((size.columns, size.words(size.rows)),)),
    "qzeros": Part(WORD_TYPES, lambda size: ((size.groups, size.words(size.rows)),)),
    "scales": FACTORS_BY_GROUP,
}
_GEMV_PARTS = {
    "qweight": Part(WORD_TYPES, lambda size: ((size.rows, size.columns // 8),)),
    "qzeros": Part(WORD_TYPES, lambda size: ((size.rows, _padded_groups(size) // 8),)),
    "scales": Part(FLOATS, lambda size: ((size.rows, _padded_groups(size)),)),
}
_FAST_FACTORS = Part(FLOATS, lambda size: ((_padded_groups(size), size.rows),))
_FAST_WORDS = Part(("I16",), lambda size: ((size.rows // _FAST_ROWS, size.columns),))


def _fast_layout(minima: str) -> Layout:
    parts = {"qweight": _FAST_WORDS, "scales": _FAST_FACTORS, minima: _FAST_FACTORS}
    return Layout("AWQ", "qweight", parts, _fast_size, _gemv_fast(minima), minima_sample)


AWQ_LAYOUTS: dict[LayoutName, Layout] = {
    "awq": Layout("AWQ", "qweight", _GEMM_PARTS, _size, _gemm, integer_sample, infer=_grouping),
    "awq_gemv": Layout("AWQ", "qweight", _GEMV_PARTS, _gemv_size, _gemv, integer_sample),
    "awq_gemv_fast": _fast_layout("qzeros"),
    "llm_awq": _fast_layout("scaled_zeros"),
}
