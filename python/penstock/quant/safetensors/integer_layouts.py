"""The layouts of integers in groups: GPTQ, compressed-tensors and MLX. Integers are packed into
little-endian 32-bit words as a stream of bits, the first integer in the lowest bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.quant.affine import pack_nibbles, unpack
from penstock.quant.safetensors.layout import (
    FACTORS_BY_GROUP,
    FLOATS,
    INDEX_TYPES,
    SCALAR_SHAPES,
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
    of_groups,
    turned,
)
from penstock.quant.safetensors.quantization_schemes import Grouping, LayoutName


def _columns_in_rows(shape: Shape, grouping: Grouping, header: Header) -> Size:
    """Return the size of a matrix whose words pack neighbouring columns of a row. If the words may
    have bits to spare, `weight_shape` gives the columns."""
    columns = shape[1] * 32 // grouping.bits
    given = header.peek("weight_shape")
    if given is not None and given.size == 2:
        exact = Size(shape[0], int(given[1]), grouping)
        if 0 < exact.columns <= columns and exact.words(exact.columns) == shape[1]:
            return exact
    return Size(shape[0], columns, grouping)


def _gptq_size(shape: Shape, grouping: Grouping, header: Header) -> Size:
    return Size(shape[1], shape[0] * 32 // grouping.bits, grouping)


def _int8_size(shape: Shape, grouping: Grouping, header: Header) -> Size:
    return Size(shape[0], shape[1], Grouping(8, grouping.group))


def _gptq_grouping(header: Header) -> Grouping | None:
    """Return the grouping of a matrix whose module has rules of its own: `qzeros` [G, words] has
    one integer per row, `scales` [G, N]."""
    zeros, scales, quants = (
        header.shapes.get(last, ()) for last in ("qzeros", "scales", "qweight")
    )
    if len(zeros) != 2 or len(scales) != 2 or 0 in (*zeros, *scales) or zeros[1] * 32 % scales[1]:
        return None
    bits = zeros[1] * 32 // scales[1]
    return even_grouping(bits, quants[0] * 32 // bits if bits else 0, scales[0])


def _packed_grouping(header: Header) -> Grouping | None:
    given, packed = header.peek("weight_shape"), header.shapes["weight_packed"]
    scales = header.shapes.get("weight_scale", ())
    if given is None or given.size != 2 or given[1] <= 0 or len(packed) != 2:
        return None
    groups = scales[1] if len(scales) == 2 else 1
    return even_grouping(packed[1] * 32 // int(given[1]), int(given[1]), groups)


def _int8_grouping(header: Header) -> Grouping | None:
    columns, scales = header.shapes["weight"][-1], header.shapes.get("weight_scale", ())
    return even_grouping(8, columns, scales[1] if len(scales) == 2 else 1)


def _held(words: npt.NDArray[Any], columns: int, bits: int) -> npt.NDArray[np.uint8]:
    """Return the integers of rows of words as in `Affine`."""
    if bits in (4, 8):
        return np.ascontiguousarray(words).view(np.uint8)
    numbers = unpack(words, bits)[:, :columns]
    return pack_nibbles(numbers) if bits < 4 else np.ascontiguousarray(numbers)


_ONES = {2: np.uint32(0x55555555), 4: np.uint32(0x11111111), 8: np.uint32(0x01010101)}


def _gptq(arrays: Arrays, size: Size) -> Numbers:
    """Convert GPTQ. A word of `qweight` packs neighbouring columns, a word of `qzeros` neighbouring
    rows. The first version of the format stores zero points minus one, subtracted from whole words
    including borrows, but from each integer of 3 bits."""
    bits = size.grouping.bits
    if bits in _ONES:
        zero = unpack(arrays["qzeros"].view(np.uint32) + _ONES[bits], bits)
    else:
        zero = unpack(arrays["qzeros"], bits) + np.uint8(1) & np.uint8(2**bits - 1)
    return _gptq_numbers(arrays, size, zero)


def _gptq_v2(arrays: Arrays, size: Size) -> Numbers:
    return _gptq_numbers(arrays, size, unpack(arrays["qzeros"], size.grouping.bits))


def _gptq_numbers(arrays: Arrays, size: Size, zero: npt.NDArray[np.uint8]) -> Numbers:
    q = _held(arrays["qweight"].T, size.columns, size.grouping.bits)
    return Numbers(q, turned(arrays["scales"]), turned(zero[:, : size.rows]))


def _packed(arrays: Arrays, size: Size) -> Numbers:
    """Convert compressed-tensors' format pack-quantized. A word of `weight_packed` packs
    neighbouring columns of a row, and a word of `weight_zero_point` neighbouring rows; older files
    store zero points as signed bytes instead. Integers and zero points of b bits are packed as
    unsigned numbers, with 2^(b - 1) added."""
    q = _held(arrays["weight_packed"], size.columns, size.grouping.bits)
    zero = _signed_zeros(arrays, size)
    stored = arrays.get("weight_zero_point")
    if stored is not None and stored.dtype.itemsize == 4:
        zero = turned(unpack(stored.T, size.grouping.bits)[:, : size.rows])
    return Numbers(q, _by_group(arrays["weight_scale"], size), zero)


def _int8(arrays: Arrays, size: Size) -> Numbers:
    q = arrays["weight"].view(np.uint8) ^ np.uint8(128)
    return Numbers(q, _by_group(arrays["weight_scale"], size), _signed_zeros(arrays, size))


def _mlx(arrays: Arrays, size: Size) -> Numbers:
    """Convert MLX. A word of `weight` packs neighbouring columns, and `biases` are minima."""
    return _with_minima(arrays, size, "biases")


def _metal(arrays: Arrays, size: Size) -> Numbers:
    """Convert the method `metal` of transformers, which is MLX with another name of the minima."""
    return _with_minima(arrays, size, "qbiases")


def _with_minima(arrays: Arrays, size: Size, minima: str) -> Numbers:
    q = _held(arrays["weight"], size.columns, size.grouping.bits)
    return Numbers(q, arrays["scales"], minimum=arrays[minima])


def _signed_zeros(arrays: Arrays, size: Size) -> npt.NDArray[np.uint8]:
    """Return the zero points [N, G] of a format that stores them as signed bytes, with half of the
    range added. Without a tensor of signed bytes, all zero points are half of the range. Raises
    ValueError if a zero point is out of range."""
    half = 1 << (size.grouping.bits - 1)
    stored = arrays.get("weight_zero_point")
    if stored is None or stored.dtype != np.int8:
        return np.full((size.rows, size.groups), half, np.uint8)
    zero = _by_group(stored, size).astype(np.int16) + half
    if not ((zero >= 0) & (zero < 2 * half)).all():
        raise ValueError("zero points are not all in range")
    return zero.astype(np.uint8)


def _by_group(values: npt.NDArray[Any], size: Size) -> npt.NDArray[Any]:
    if values.size == 1:
        return np.full((size.rows, size.groups), values.reshape(()))
    return values.reshape(size.rows, size.groups)


def _one(size: Size) -> tuple[Shape, ...]:
    """Return the shapes of one number for all rows, if a row has one group."""
    return SCALAR_SHAPES if size.groups == 1 else ()


_GPTQ_PARTS = {
    "qweight": Part(WORD_TYPES, lambda size: ((size.words(size.columns), size.rows),)),
    "qzeros": Part(WORD_TYPES, lambda size: ((size.groups, size.words(size.rows)),)),
    "scales": FACTORS_BY_GROUP,
    "g_idx": Part(INDEX_TYPES, lambda size: ((size.columns,),), optional=True),
}
_SCALE = Part(FLOATS, of_groups)
_SCALE_OR_ONE = Part(FLOATS, lambda size: (*of_groups(size), *_one(size)))
_PACKED_PARTS = {
    "weight_packed": Part(WORD_TYPES, lambda size: ((size.rows, size.words(size.columns)),)),
    "weight_scale": _SCALE,
    "weight_shape": Part(INDEX_TYPES, lambda size: ((2,),), optional=True),
    "weight_g_idx": Part(INDEX_TYPES, lambda size: ((size.columns,),), optional=True),
    "weight_zero_point": Part(
        ("I32",),
        lambda size: ((size.words(size.rows), size.groups),),
        optional=True,
        other=Part(("I8",), of_groups),
    ),
}
_INT8_PARTS = {
    "weight": Part(("I8",), lambda size: ((size.rows, size.columns),)),
    "weight_scale": _SCALE_OR_ONE,
    "weight_zero_point": Part(("I8",), lambda size: (*of_groups(size), *_one(size)), optional=True),
}
_MLX_WORDS = Part(("U32",), lambda size: ((size.rows, size.words(size.columns)),))
_MLX_FACTORS = Part(FLOATS, lambda size: ((size.rows, size.groups),))
_MLX_PARTS = {"weight": _MLX_WORDS, "scales": _MLX_FACTORS, "biases": _MLX_FACTORS}
_METAL_PARTS = {"weight": _MLX_WORDS, "scales": _MLX_FACTORS, "qbiases": _MLX_FACTORS}

INTEGER_LAYOUTS: dict[LayoutName, Layout] = {
    "gptq": Layout(
        "GPTQ", "qweight", _GPTQ_PARTS, _gptq_size, _gptq, integer_sample, "g_idx", _gptq_grouping
    ),
    "gptq_v2": Layout(
        "GPTQ",
        "qweight",
        _GPTQ_PARTS,
        _gptq_size,
        _gptq_v2,
        integer_sample,
        "g_idx",
        _gptq_grouping,
    ),
    "packed": Layout(
        "pack-quantized",
        "weight_packed",
        _PACKED_PARTS,
        _columns_in_rows,
        _packed,
        integer_sample,
        "weight_g_idx",
        _packed_grouping,
        ignored=("input_global_scale",),
    ),
    "int8": Layout(
        "int-quantized",
        "weight",
        _INT8_PARTS,
        _int8_size,
        _int8,
        integer_sample,
        infer=_int8_grouping,
        stacked=True,
        ignored=("input_scale", "input_zero_point"),
    ),
    "mlx": Layout("MLX", "weight", _MLX_PARTS, _columns_in_rows, _mlx, minima_sample, stacked=True),
    "metal": Layout("MLX", "weight", _METAL_PARTS, _columns_in_rows, _metal, minima_sample),
}
