"""The description of a quantized matrix [N, C] in a safetensors file: its tensors, their types and
shapes, and their conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Affine, Dense, FloatName, Matrix
from penstock.quant.bfloat16 import float32_to_bfloat16
from penstock.quant.safetensors.quantization_schemes import Grouping

Shape: TypeAlias = tuple[int, ...]
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""The tensors of a matrix by the last component of their names. Floats are float32."""

FLOAT_TYPES: Mapping[str, FloatName] = {"F16": "f16", "BF16": "bf16", "F32": "f32"}
FLOATS = tuple(FLOAT_TYPES)
WORD_TYPES = ("I32", "U32")
INDEX_TYPES = ("I32", "I64")
SCALAR_SHAPES: tuple[tuple[int, ...], ...] = ((1,), (), (1, 1))


@dataclass(frozen=True, slots=True)
class Header:
    """The headers of the tensors of a matrix, whose data have not been read.

    - `shapes`, `types`: of its tensors, by the last component of their names.
    - `peek`: reads a small tensor; None if there is none.
    """

    shapes: Mapping[str, Shape]
    types: Mapping[str, str]
    peek: Callable[[str], npt.NDArray[Any] | None]

    def floats(self, last: str) -> FloatName:
        """Return the type of a float tensor, float32 if it is missing."""
        return FLOAT_TYPES.get(self.types.get(last, "F32"), "f32")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a matrix [N, C] and the grouping of its columns. `floats`: the type of its values
    if no integer layout of the kernels has them."""

    rows: int
    columns: int
    grouping: Grouping
    floats: FloatName | None = None

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


FACTORS_BY_GROUP = Part(FLOATS, lambda size: ((size.groups, size.rows),))
"""Scales or minima of a matrix that is stored transposed."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The converted arrays of a matrix.

    - `q`: as in `Affine`, with the grouping's `held_bits`.
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

    - `title`: the format's name for the log.
    - `quants`: the name of the tensor with the integers, which every matrix has.
    - `parts`: all tensors of a matrix, by name. The first part is the quants.
    - `size`: returns the matrix's size from the shape of its quants. Raises ValueError if small
      tensors contradict it.
    - `read`: converts the tensors. Raises ValueError for numbers that are invalid in the format.
    - `sample`: returns one row of zeros in the largest form that a matrix may have. Its last
      arguments are the types of the float tensors, and whether zero points are in the middle.
    - `order`: the name of the tensor that lists the group of each column, or None.
    - `infer`: returns the grouping of a matrix from its tensors' headers, or None if that is not
      possible.
    - `accepts`: whether a matrix has this layout, if the types of its tensors do not show it.
    - `stacked`: whether the tensors may have a leading dimension of experts.
    - `ignored`: tensors that only describe the quantization or belong to activations.
    - `cpu_bits`: the bits in which packed weights on a CPU hold one integer, if fewer than in
      `Affine`.
    """

    title: str
    quants: str
    parts: Mapping[str, Part]
    size: Callable[[Shape, Grouping, Header], Size]
    read: Callable[[Arrays, Size], Numbers | Matrix]
    sample: Callable[[Size, set[str], bool], Matrix]
    order: str | None = None
    infer: Callable[[Header], Grouping | None] | None = None
    accepts: Callable[[Header], bool] | None = None
    stacked: bool = False
    ignored: tuple[str, ...] = ()
    cpu_bits: int | None = None


def float_sample(size: Size, floats: FloatName) -> Dense:
    """Return a row of zeros of floats."""
    dtype = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[floats]
    return Dense(np.zeros((1, size.columns), dtype), floats)


def rounded(values: npt.NDArray[np.float32], floats: FloatName) -> Dense:
    """Round float32 values to a type."""
    if floats == "bf16":
        return Dense(float32_to_bfloat16(values), floats)
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float16 if floats == "f16" else np.float32, copy=False)
    if not np.isfinite(narrow).all():
        raise ValueError("not all weights fit into float16")
    return Dense(narrow, floats)


def integer_sample(size: Size, float_types: set[str], symmetric: bool) -> Affine:
    """Return the largest form of integers with zero points. Different zero points become minima
    -scale * zero, which need up to 19 significant bits."""
    halves = symmetric and float_types == {"F16"}
    factor = np.zeros((1, size.groups), np.float16 if halves else np.float32)
    bits = size.grouping.held_bits
    q = np.zeros((1, size.columns * bits // 8), np.uint8)
    return Affine(bits, size.group, q, factor, None if symmetric else factor)


def minima_sample(size: Size, float_types: set[str], symmetric: bool) -> Affine:
    """Return the largest form of integers with minima of the type of the scales."""
    sample = integer_sample(size, float_types, True)
    return replace(sample, minimum=sample.scale)


def turned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the transposed array in C order."""
    return np.ascontiguousarray(values.T)


def even_grouping(bits: int, columns: int, groups: int) -> Grouping | None:
    """Return the grouping of columns in equal groups, or None if there is none that kernels
    support."""
    if not 1 <= bits <= 8 or groups < 1 or columns % groups:
        return None
    group = columns // groups
    if groups == 1:
        return Grouping(bits, None)
    return Grouping(bits, group) if group % 32 == 0 else None


def of_groups(size: Size) -> tuple[Shape, ...]:
    """Return the accepted shapes of a tensor with one number per row and group. If a row has one
    group, the second dimension may be omitted."""
    whole: tuple[Shape, ...] = ((size.rows,),) if size.groups == 1 else ()
    return ((size.rows, size.groups), *whole)
