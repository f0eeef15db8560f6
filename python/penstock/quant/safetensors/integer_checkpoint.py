"""Reads safetensors folders in which some matrices are integers in groups: GPTQ, AWQ,
compressed-tensors and MLX."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.regroup import split_groups
from penstock.kernels.weights import Affine, Dense, Matrix
from penstock.quant.affine import affine_from_minima, affine_from_zero_points, unify_affine
from penstock.quant.checkpoint import Device, TensorInfo
from penstock.quant.safetensors.integer_layouts import FLOAT_TYPES, LAYOUTS, Layout, Size
from penstock.quant.safetensors.quantization_schemes import IntegerScheme
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from penstock.quant.weight_slices import ACTIVATION_GROUP, size_bytes

LARGEST_FACTOR = np.finfo(np.float32).max / 512
"""The largest accepted magnitude of a scale or minimum: all 8-bit weights are then finite."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A quantized matrix in the file, or a stack of matrices.

    - `count`: the number of stacked matrices; None: a single matrix.
    - `parts`: the matrix's tensors, by the last component of their names.
    """

    count: int | None
    size: Size
    parts: Mapping[str, TensorInfo]

    @property
    def shape(self) -> tuple[int, ...]:
        own = self.size.rows, self.size.columns
        return own if self.count is None else (self.count, *own)

    @property
    def float_types(self) -> set[str]:
        return {info.type_name for info in self.parts.values() if info.type_name in FLOAT_TYPES}

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self.parts.values())


class IntegerCheckpoint:
    """A Checkpoint that reads from `folder` and merges the tensors of each quantized matrix into
    one tensor `weight`. Float matrices are unchanged."""

    def __init__(self, folder: SafetensorsFolder, scheme: IntegerScheme) -> None:
        """Find the tensors of each quantized matrix, without reading data. Raises ModelError naming
        a tensor that is missing or has the wrong type or shape."""
        self.path = folder.path
        self._folder = folder
        self._scheme = scheme
        self._layout: Layout = LAYOUTS[scheme.layout]
        self._stored: dict[str, _Stored] = {}
        tensors = dict(folder.tensors)
        for info in folder.tensors.values():
            module, dot, last = info.name.rpartition(".")
            if last != self._layout.quants or not self._has_integers(info):
                continue
            stored = self._open(module, dot, info)
            for part in stored.parts.values():
                del tensors[part.name]
            name = f"{module}{dot}weight"
            if name in tensors:
                raise ModelError(f"{self.path}: has both {name} and {info.name}")
            self._stored[name] = stored
            tensors[name] = TensorInfo(
                name, stored.shape, self._type_name(stored), info.offset, stored.size_bytes
            )
        self.tensors: Mapping[str, TensorInfo] = tensors

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint. Also raises ModelError if columns are reordered, or if a scale or minimum
        is not finite."""
        stored = self._stored.get(name)
        if stored is None:
            return self._folder.matrix(name)
        if stored.count is not None:
            raise ModelError(f"{self.path}: {name}: expected a matrix, the shape is {stored.shape}")
        return self._converted(name, stored, self._arrays(stored))

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint."""
        stored = self._stored.get(name)
        if stored is None:
            return self._folder.stack(name)
        if stored.count is None:
            raise ModelError(f"{self.path}: {name}: expected matrices, the shape is {stored.shape}")
        arrays = self._arrays(stored)
        each = (
            self._converted(name, stored, {last: one[index] for last, one in arrays.items()})
            for index in range(stored.count)
        )
        return unify_affine(tuple(each), f"{self.path}: {name}")

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint. The form depends on the data, so the sample has the largest possible
        form."""
        stored = self._stored.get(name)
        return self._folder.layout_sample(name) if stored is None else self._layout_sample(stored)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        return self._folder.vector(name)

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        return self._folder.flattened(name)

    @property
    def extra_bytes(self) -> int:
        """The bytes that the matrices may need on a CPU beyond the size of their files, because
        scales are repeated if groups are larger than 32 columns."""
        row_bytes: dict[tuple[str, int], int] = {}  # (type, columns) -> bytes of a row
        taken = 0
        for stored in self._stored.values():
            alike = self._type_name(stored), stored.size.columns
            if alike not in row_bytes:
                row_bytes[alike] = size_bytes(
                    split_groups(self._layout_sample(stored), ACTIVATION_GROUP)
                )
            taken += row_bytes[alike] * math.prod(stored.shape[:-1]) - stored.size_bytes
        return max(taken, 0)

    def size_note(self, device: Device) -> str:
        """See SizedCheckpoint."""
        return ""

    def _has_integers(self, info: TensorInfo) -> bool:
        """Return whether a tensor with the name of the quants contains integers. A tensor `weight`
        may also contain floats."""
        part = self._layout.parts[self._layout.quants]
        return self._layout.quants != "weight" or info.type_name in part.types

    def _type_name(self, stored: _Stored) -> str:
        """Return a type name for the header entry: equal names mean equal layout, bits, group size
        and float types."""
        types, size = "/".join(sorted(stored.float_types)), stored.size
        return f"{self._scheme.layout} {size.grouping.bits} bits, groups of {size.group}, {types}"

    def _open(self, module: str, dot: str, quants: TensorInfo) -> _Stored:
        last_dimensions = quants.shape[-2:]
        stacked = self._scheme.layout == "mlx" and len(quants.shape) == 3
        if len(quants.shape) != 2 and not stacked:
            raise ModelError(
                f"{self.path}: {quants.name}: expected a matrix, the shape is {quants.shape}"
            )
        size = self._layout.size(last_dimensions, self._scheme.grouping_of(module))
        count = quants.shape[0] if stacked else None
        if 0 in quants.shape:
            raise ModelError(f"{self.path}: {quants.name}: is empty, the shape is {quants.shape}")
        if size.columns % ACTIVATION_GROUP:
            raise ModelError(
                f"{self.path}: {quants.name}: {size.columns} columns are not supported, only "
                f"multiples of {ACTIVATION_GROUP}"
            )
        parts = self._parts(f"{module}{dot}", size, () if count is None else (count,))
        return _Stored(count, size, parts)

    def _parts(self, prefix: str, size: Size, stacked: tuple[int, ...]) -> dict[str, TensorInfo]:
        """Return the tensors of a matrix by the last component of their names. `stacked`: the
        leading dimension of a stack, or (). Raises ModelError naming a tensor that is missing or
        has the wrong type or shape."""
        found = {}
        for last, part in self._layout.parts.items():
            info = self._folder.tensors.get(prefix + last)
            if info is None:
                if part.optional:
                    continue
                raise ModelError(f"{self.path}: tensor {prefix}{last} is missing")
            if part.other is not None and info.type_name in part.other.types:
                part = part.other
            if info.type_name not in part.types:
                raise ModelError(
                    f"{self.path}: tensor {info.name} has type {info.type_name}, expected "
                    f"{' or '.join(part.types)}"
                )
            shapes = tuple(stacked + shape for shape in part.shapes(size))
            if info.shape not in shapes:
                raise ModelError(
                    f"{self.path}: tensor {info.name} has shape {info.shape}, expected {shapes[0]}"
                )
            found[last] = info
        return found

    def _arrays(self, stored: _Stored) -> dict[str, npt.NDArray[Any]]:
        """Read the tensors of a matrix. Raises ModelError if a scale or minimum is not finite."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for last, info in stored.parts.items():
            if info.type_name not in FLOAT_TYPES:
                arrays[last] = self._folder.integers(info.name)
                continue
            arrays[last] = self._folder.floats(info.name)
            if not (np.abs(arrays[last]) <= LARGEST_FACTOR).all():
                raise ModelError(f"{self.path}: {info.name}: not all numbers are finite")
        return arrays

    def _converted(
        self, name: str, stored: _Stored, arrays: Mapping[str, npt.NDArray[Any]]
    ) -> Affine:
        where, size = f"{self.path}: {name}", stored.size
        self._check_order(stored, arrays)
        self._check_shape(stored, arrays)
        try:
            numbers = self._layout.read(arrays, size)
        except ValueError as error:
            raise ModelError(f"{where}: {error}") from None
        bits, group = size.grouping.bits, size.group
        if numbers.minimum is not None:
            return affine_from_minima(bits, group, numbers.q, numbers.scale, numbers.minimum)
        assert numbers.zero is not None
        return affine_from_zero_points(bits, group, numbers.q, numbers.scale, numbers.zero, where)

    def _check_order(self, stored: _Stored, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Check that each column k belongs to group k // group, as the kernels require. A list of
        only -1, which was never filled, is also accepted. Raises ModelError naming the tensor."""
        last, size = self._layout.order, stored.size
        if last is None or last not in arrays:
            return
        given = arrays[last]
        plain = np.arange(size.columns) // size.group
        if np.array_equal(given, plain) or (given == -1).all():
            return
        name = stored.parts[last].name
        if not ((given >= 0) & (given < size.groups)).all():
            raise ModelError(f"{self.path}: {name}: not all values are in 0..{size.groups - 1}")
        raise ModelError(
            f"{self.path}: {name}: columns are reordered (desc_act, actorder), which is not "
            "supported: the columns of a group must be neighbours"
        )

    def _check_shape(self, stored: _Stored, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        given = arrays.get("weight_shape")
        if given is not None and tuple(given.tolist()) != stored.shape:
            raise ModelError(
                f"{self.path}: {stored.parts['weight_shape'].name} is {given.tolist()}, but the "
                f"weights have shape {list(stored.shape)}"
            )

    def _layout_sample(self, stored: _Stored) -> Affine:
        """Return one row of zeros in the largest form that the matrix may have."""
        bits, size = stored.size.grouping.bits, stored.size
        halves = stored.float_types == {"F16"}
        minima = not self._scheme.symmetric
        if minima and self._scheme.layout != "mlx":
            halves = False  # -scale * zero has up to 19 significant bits
        factor = np.zeros((1, size.groups), np.float16 if halves else np.float32)
        q = np.zeros((1, size.columns * bits // 8), np.uint8)
        return Affine(bits, size.group, q, factor, factor if minima else None)
