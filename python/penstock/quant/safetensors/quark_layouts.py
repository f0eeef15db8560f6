"""The layouts of AMD Quark's integers in groups, which it stores transposed: 4-bit integers packed
into words of 8 rows, in order or in the order of AWQ, and 8-bit integers.

Its other forms have the layouts of compressed-tensors and modelopt: see `quark_config`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from penstock.quant.affine import pack_nibbles, unpack
from penstock.quant.safetensors.awq_layouts import unpack_reordered
from penstock.quant.safetensors.layout import (
    FACTORS_BY_GROUP,
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
    turned,
)
from penstock.quant.safetensors.quantization_schemes import Grouping, LayoutName

Unpack = Callable[[npt.NDArray[np.generic]], npt.NDArray[np.uint8]]


def _in_order(words: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    return unpack(words, 4)


def _size_int4(shape: Shape, grouping: Grouping, header: Header) -> Size:
    return Size(shape[1] * 8, shape[0], grouping)


def _size_int8(shape: Shape, grouping: Grouping, header: Header) -> Size:
    return Size(shape[1], shape[0], Grouping(8, grouping.group))


def _grouping(bits: int) -> Callable[[Header], Grouping | None]:
    def infer(header: Header) -> Grouping | None:
        quants, scales = header.shapes["weight"], header.shapes.get("weight_scale", ())
        return even_grouping(bits, quants[0], scales[0]) if len(scales) == 2 else None

    return infer


def _int4(unpacked: Unpack, signed: bool) -> Callable[[Arrays, Size], Numbers]:
    """Return the reader of 4-bit integers. Signed ones are stored as two's complement, which
    differs from the integer plus 8 in its highest bit."""
    flipped = np.uint8(8 if signed else 0)

    def read(arrays: Arrays, size: Size) -> Numbers:
        q = unpacked(arrays["weight"]).T ^ flipped
        zero = np.full((size.rows, size.groups), flipped, np.uint8)
        if "weight_zero_point" in arrays:
            zero = turned(unpacked(arrays["weight_zero_point"])) ^ flipped
        return Numbers(pack_nibbles(q), turned(arrays["weight_scale"]), zero)

    return read


def _int8(arrays: Arrays, size: Size) -> Numbers:
    q = turned(arrays["weight"]).view(np.uint8) ^ np.uint8(128)
    zero = np.full((size.rows, size.groups), 128, np.uint8)
    if "weight_zero_point" in arrays:
        zero = turned(arrays["weight_zero_point"]).view(np.uint8) ^ np.uint8(128)
    return Numbers(q, turned(arrays["weight_scale"]), zero)


_WORDS = {
    "weight": Part(WORD_TYPES, lambda size: ((size.columns, size.rows // 8),)),
    "weight_scale": FACTORS_BY_GROUP,
    "weight_zero_point": Part(
        WORD_TYPES, lambda size: ((size.groups, size.rows // 8),), optional=True
    ),
}
_BYTES = {
    "weight": Part(("I8",), lambda size: ((size.columns, size.rows),)),
    "weight_scale": FACTORS_BY_GROUP,
    "weight_zero_point": Part(("I8",), lambda size: ((size.groups, size.rows),), optional=True),
}


def _int4_layout(unpacked: Unpack, signed: bool) -> Layout:
    return Layout(
        "Quark int4",
        "weight",
        _WORDS,
        _size_int4,
        _int4(unpacked, signed),
        integer_sample,
        infer=_grouping(4),
        ignored=("input_scale", "input_zero_point"),
    )


QUARK_LAYOUTS: dict[LayoutName, Layout] = {
    "quark_int4": _int4_layout(unpack_reordered, signed=True),
    "quark_uint4": _int4_layout(unpack_reordered, signed=False),
    "quark_int4_in_order": _int4_layout(_in_order, signed=True),
    "quark_uint4_in_order": _int4_layout(_in_order, signed=False),
    "quark_int8": Layout(
        "Quark int8",
        "weight",
        _BYTES,
        _size_int8,
        _int8,
        integer_sample,
        infer=_grouping(8),
        ignored=("input_scale", "input_zero_point"),
    ),
}
