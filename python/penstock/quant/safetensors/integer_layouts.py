"""The layouts of integer matrices [N, C] in safetensors files: their tensors, types and shapes, and
their conversion to quants, scales and zero points or minima. Integers are packed into little-endian
32-bit words, the first integer in the lowest bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.quant.affine import unpack
from penstock.quant.safetensors.quantization_schemes import Grouping, LayoutName

Shape: TypeAlias = tuple[int, ...]
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""The tensors of a matrix by the last component of their names. Floats are float32."""

FLOAT_TYPES = ("F16", "BF16", "F32")
WORD_TYPES = ("I32", "U32")
INDEX_TYPES = ("I32", "I64")

# AWQ packs 8 columns of its transposed matrix into a word: the column of each nibble, lowest first.
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a matrix [N, C] and the grouping of its columns."""

    rows: int
    columns: int
    grouping: Grouping

    @property
    def groups(self) -> int:
        """The number of groups per row."""
        return -(-self.columns // self.group)

    @property
    def group(self) -> int:
        """The number of columns per group."""
        return self.grouping.group or self.columns

    def words(self, numbers: int) -> int:
        """Return the number of words into which `numbers` integers are packed."""
        return -(-numbers * self.grouping.bits // 32)


@dataclass(frozen=True, slots=True)
class Part:
    """One of the tensors that store a matrix.

    - `types`: the accepted types.
    - `shapes`: returns the accepted shapes, the usual shape first.
    - `optional`: the tensor may be missing.
    - `other`: an alternative, chosen if the tensor has one of its types.
    """

    types: tuple[str, ...]
    shapes: Callable[[Size], tuple[Shape, ...]]
    optional: bool = False
    other: Part | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """The converted arrays of a matrix.

    - `q`: [N, C * bits / 8] uint8, as in `Affine`.
    - `scale`: [N, G].
    - `zero` or `minimum`: [N, G]; exactly one of the two is set.
    """

    q: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.float32]
    zero: npt.NDArray[np.uint8] | None = None
    minimum: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a matrix in one quantization format.

    - `quants`: the name of the tensor with the integers, which every matrix has.
    - `parts`: all tensors of a matrix, by name.
    - `size`: returns the matrix's size from the shape of its quants.
    - `read`: converts the tensors. Raises ValueError for numbers that are invalid in the format.
    - `order`: the name of the tensor that lists the group of each column, or None.
    """

    quants: str
    parts: Mapping[str, Part]
    size: Callable[[Shape, Grouping], Size]
    read: Callable[[Arrays, Size], Numbers]
    order: str | None = None


def _of_groups(size: Size) -> tuple[Shape, ...]:
    """Return the accepted shapes of a tensor with one number per row and group. If a row has one
    group, the second dimension may be omitted."""
    whole: tuple[Shape, ...] = ((size.rows,),) if size.groups == 1 else ()
    return ((size.rows, size.groups), *whole)


def _columns_in_rows(shape: Shape, grouping: Grouping) -> Size:
    """Return the size of a matrix whose words pack neighbouring columns of a row."""
    return Size(shape[0], shape[1] * 32 // grouping.bits, grouping)


def _gptq_size(shape: Shape, grouping: Grouping) -> Size:
    return Size(shape[1], shape[0] * 32 // grouping.bits, grouping)


def _awq_size(shape: Shape, grouping: Grouping) -> Size:
    return Size(shape[1] * 8, shape[0], grouping)


def _int8_size(shape: Shape, grouping: Grouping) -> Size:
    return Size(shape[0], shape[1], grouping)


def _gptq(arrays: Arrays, size: Size) -> Numbers:
    """Convert GPTQ. A word of `qweight` packs neighbouring columns, a word of `qzeros` neighbouring
    rows. The first version of the format stores zero points minus one, subtracted from whole words
    including borrows."""
    zeros = arrays["qzeros"].view(np.uint32)
    ones = np.uint32(0x11111111 if size.grouping.bits == 4 else 0x01010101)
    return _gptq_numbers(arrays, size, zeros + ones)


def _gptq_v2(arrays: Arrays, size: Size) -> Numbers:
    return _gptq_numbers(arrays, size, arrays["qzeros"])


def _gptq_numbers(arrays: Arrays, size: Size, zeros: npt.NDArray[Any]) -> Numbers:
    q = np.ascontiguousarray(arrays["qweight"].T).view(np.uint8)
    zero = unpack(zeros, size.grouping.bits)
    return Numbers(q, _turned(arrays["scales"]), _turned(zero[:, : size.rows]))


def _awq(arrays: Arrays, size: Size) -> Numbers:
    """Convert AWQ, whose words pack 8 neighbouring rows. Each byte of the result combines the
    nibbles of two neighbouring columns."""
    words = arrays["qweight"].view(np.uint32)
    even, odd = words[0::2], words[1::2]
    low_bits, high_bits = np.uint32(0x0F0F0F0F), np.uint32(0xF0F0F0F0)
    q = np.empty((words.shape[1], 8, len(even)), np.uint8)
    halves = (
        (even & low_bits) | (odd & low_bits) << np.uint32(4),
        (even >> np.uint32(4)) & low_bits | (odd & high_bits),
    )
    for nibble, column in enumerate(AWQ_COLUMNS):
        q[:, column] = _bytes_of(halves[nibble % 2])[:, :, nibble // 2].T
    zero = unpack(arrays["qzeros"], 4).reshape(size.groups, -1, 8)
    ordered = np.empty_like(zero)
    ordered[:, :, AWQ_COLUMNS] = zero
    return Numbers(
        q.reshape(size.rows, -1),
        _turned(arrays["scales"]),
        _turned(ordered.reshape(size.groups, -1)),
    )


def _packed(arrays: Arrays, size: Size) -> Numbers:
    """Convert compressed-tensors' format pack-quantized. A word of `weight_packed` packs
    neighbouring columns of a row, and a word of `weight_zero_point` neighbouring rows; older files
    store zero points as signed bytes instead. Integers and zero points of b bits are packed as
    unsigned numbers, with 2^(b - 1) added."""
    q = np.ascontiguousarray(arrays["weight_packed"]).view(np.uint8)
    zero = _signed_zeros(arrays, size)
    stored = arrays.get("weight_zero_point")
    if stored is not None and stored.dtype.itemsize == 4:
        zero = _turned(unpack(stored.T, size.grouping.bits)[:, : size.rows])
    return Numbers(q, _by_group(arrays["weight_scale"], size), zero)


def _int8(arrays: Arrays, size: Size) -> Numbers:
    q = arrays["weight"].view(np.uint8) ^ np.uint8(128)
    return Numbers(q, _by_group(arrays["weight_scale"], size), _signed_zeros(arrays, size))


def _mlx(arrays: Arrays, size: Size) -> Numbers:
    """Convert MLX. A word of `weight` packs neighbouring columns, and `biases` are minima."""
    q = np.ascontiguousarray(arrays["weight"]).view(np.uint8)
    return Numbers(q, arrays["scales"], minimum=arrays["biases"])


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
    return values.reshape(size.rows, size.groups)


def _turned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(values.T)


def _bytes_of(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    return words.view(np.uint8).reshape(*words.shape, 4)


_GPTQ_PARTS = {
    "qweight": Part(WORD_TYPES, lambda size: ((size.words(size.columns), size.rows),)),
    "qzeros": Part(WORD_TYPES, lambda size: ((size.groups, size.words(size.rows)),)),
    "scales": Part(FLOAT_TYPES, lambda size: ((size.groups, size.rows),)),
    "g_idx": Part(INDEX_TYPES, lambda size: ((size.columns,),), optional=True),
}
_AWQ_PARTS = {
    "qweight": Part(WORD_TYPES, lambda size: ((size.columns, size.words(size.rows)),)),
    "qzeros": Part(WORD_TYPES, lambda size: ((size.groups, size.words(size.rows)),)),
    "scales": Part(FLOAT_TYPES, lambda size: ((size.groups, size.rows),)),
}
_SCALE = Part(FLOAT_TYPES, _of_groups)
_PACKED_PARTS = {
    "weight_packed": Part(WORD_TYPES, lambda size: ((size.rows, size.words(size.columns)),)),
    "weight_scale": _SCALE,
    "weight_shape": Part(INDEX_TYPES, lambda size: ((2,),), optional=True),
    "weight_g_idx": Part(INDEX_TYPES, lambda size: ((size.columns,),), optional=True),
    "weight_zero_point": Part(
        ("I32",),
        lambda size: ((size.words(size.rows), size.groups),),
        optional=True,
        other=Part(("I8",), _of_groups),
    ),
}
_INT8_PARTS = {
    "weight": Part(("I8",), lambda size: ((size.rows, size.columns),)),
    "weight_scale": _SCALE,
    "weight_zero_point": Part(("I8",), _of_groups, optional=True),
    "input_scale": Part(FLOAT_TYPES, lambda size: ((1,), (), (1, 1)), optional=True),
    "input_zero_point": Part(("I8",), lambda size: ((1,), (), (1, 1)), optional=True),
}
_MLX_PARTS = {
    "weight": Part(("U32",), lambda size: ((size.rows, size.words(size.columns)),)),
    "scales": Part(FLOAT_TYPES, lambda size: ((size.rows, size.groups),)),
    "biases": Part(FLOAT_TYPES, lambda size: ((size.rows, size.groups),)),
}

LAYOUTS: Mapping[LayoutName, Layout] = {
    "gptq": Layout("qweight", _GPTQ_PARTS, _gptq_size, _gptq, "g_idx"),
    "gptq_v2": Layout("qweight", _GPTQ_PARTS, _gptq_size, _gptq_v2, "g_idx"),
    "awq": Layout("qweight", _AWQ_PARTS, _awq_size, _awq),
    "packed": Layout("weight_packed", _PACKED_PARTS, _columns_in_rows, _packed, "weight_g_idx"),
    "int8": Layout("weight", _INT8_PARTS, _int8_size, _int8),
    "mlx": Layout("weight", _MLX_PARTS, _columns_in_rows, _mlx),
}
