"""Reads safetensors folders in which some matrices are quantized to integers, or to floats that
become integers: GPTQ, AWQ, compressed-tensors, MLX, NVFP4, MXFP4, HQQ and bitsandbytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.regroup import split_groups
from penstock.kernels.weights import Affine, Dense, Matrix
from penstock.quant.affine import affine_from_minima, affine_from_zero_points, unify_affine, unpack
from penstock.quant.checkpoint import Device, TensorInfo
from penstock.quant.safetensors.layout import (
    FLOAT_TYPES,
    Arrays,
    Header,
    Layout,
    Numbers,
    Size,
    float_sample,
    rounded,
)
from penstock.quant.safetensors.layouts import LAYOUTS
from penstock.quant.safetensors.quantization_schemes import IntegerScheme
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from penstock.quant.weight_slices import ACTIVATION_GROUP, size_bytes

LARGEST_FACTOR = np.finfo(np.float32).max / 512
"""The largest accepted magnitude of a scale or minimum: all 8-bit weights are then finite."""
NOTED = 1.25
"""The ratio of memory to file from which the log mentions a format."""
MAX_PEEKED_BYTES = 1 << 20
"""The largest tensor that is read when a folder is opened: the groups of a matrix's columns."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A quantized matrix in the file, or a stack of matrices.

    - `layout`: its layout.
    - `count`: the number of stacked matrices; None: a single matrix.
    - `parts`: the matrix's tensors, by the last component of their names.
    """

    layout: Layout
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
        self._layouts = [LAYOUTS[name] for name in scheme.layouts]
        self._stored: dict[str, _Stored] = {}
        tensors = dict(folder.tensors)
        for info in folder.tensors.values():
            module, dot, last = info.name.rpartition(".")
            layout = self._layout_of(module + dot, last, info)
            if layout is None:
                continue
            stored = self._open(module, dot, info, layout)
            for part in stored.parts.values():
                del tensors[part.name]
            for ignored in layout.ignored:
                tensors.pop(f"{module}{dot}{ignored}", None)
            name = f"{module}{dot}weight"
            if name in tensors:
                raise ModelError(f"{self.path}: has both {name} and {info.name}")
            self._stored[name] = stored
            tensors[name] = TensorInfo(
                name, stored.shape, self._type_name(stored), info.offset, stored.size_bytes
            )
        self.tensors: Mapping[str, TensorInfo] = tensors

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint. Also raises ModelError if a scale or minimum is not finite."""
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
        return self._folder.layout_sample(name) if stored is None else self._sample(stored)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        return self._folder.vector(name)

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        return self._folder.flattened(name)

    def codes(self, name: str) -> npt.NDArray[np.uint8]:
        """See SafetensorsFile. For tensors that no layout has merged."""
        return self._folder.codes(name)

    def integers(self, name: str) -> npt.NDArray[np.generic]:
        """See SafetensorsFile."""
        return self._folder.integers(name)

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """See SafetensorsFile."""
        return self._folder.floats(name)

    @property
    def extra_bytes(self) -> int:
        """The bytes that the matrices may need on a CPU beyond the size of their files, because
        scales are repeated if groups are larger than 32 columns, or because no kernel reads their
        integers at their size."""
        sizes = self._sizes("cpu").values()
        return max(math.ceil(sum(held - in_file for held, in_file, _ in sizes)), 0)

    def size_note(self, device: Device) -> str:
        """See SizedCheckpoint."""
        larger = [
            f"{title} takes {8 * held / elements:.3g} bits per weight instead of "
            f"{8 * in_file / elements:.3g}"
            for title, (held, in_file, elements) in sorted(self._sizes(device).items())
            if held > NOTED * in_file
        ]
        return (
            f"; no kernel reads these formats at their size: {', '.join(larger)}" if larger else ""
        )

    def _sizes(self, device: Device) -> dict[str, tuple[float, int, int]]:
        """Return for each format the bytes of its matrices in memory, at most, and in the file, and
        their number of weights."""
        row_bytes: dict[str, float] = {}  # type and columns -> bytes of a row
        sizes: dict[str, tuple[float, int, int]] = {}
        for stored in self._stored.values():
            alike = f"{self._type_name(stored)} {stored.size.columns}"
            if alike not in row_bytes:
                row_bytes[alike] = self._row_bytes(stored, device)
            title = stored.layout.title
            if stored.size.floats is not None and stored.layout.order is not None:
                title += " with reordered columns"
            held, in_file, elements = sizes.get(title, (0.0, 0, 0))
            held += row_bytes[alike] * math.prod(stored.shape[:-1])
            sizes[title] = held, in_file + stored.size_bytes, elements + math.prod(stored.shape)
        return sizes

    def _row_bytes(self, stored: _Stored, device: Device) -> float:
        sample = self._sample(stored)
        if not isinstance(sample, Affine):
            return size_bytes(sample)
        if device == "cpu":
            saved = sample.bits - (stored.layout.cpu_bits or sample.bits)
            split = split_groups(sample, math.gcd(sample.group, ACTIVATION_GROUP))
            return size_bytes(split) - saved * stored.size.columns / 8
        return size_bytes(sample)

    def _layout_of(self, prefix: str, last: str, info: TensorInfo) -> Layout | None:
        """Return the layout whose quants are the tensor `last` of a module, or None. Among several,
        the first whose tensors have its types; if none has, the first, so that the error names the
        tensor at fault. A tensor `weight` may also contain floats."""
        named = [
            one
            for one in self._layouts
            if one.quants == last and (last != "weight" or info.type_name in one.parts[last].types)
        ]
        if len(named) < 2:
            return named[0] if named else None
        header = self._header(prefix, named)
        fitting = [one for one in named if _fits(one, header)]
        return (fitting or named)[0]

    def _header(self, prefix: str, layouts: list[Layout]) -> Header:
        lasts = {last for layout in layouts for last in layout.parts}
        infos = {last: self._folder.tensors.get(prefix + last) for last in lasts}
        return Header(
            {last: info.shape for last, info in infos.items() if info is not None},
            {last: info.type_name for last, info in infos.items() if info is not None},
            lambda last: self._peek(prefix + last),
        )

    def _peek(self, name: str) -> npt.NDArray[Any] | None:
        """Read a small tensor of integers; None if there is none."""
        info = self._folder.tensors.get(name)
        if info is None or info.type_name in FLOAT_TYPES or info.size_bytes > MAX_PEEKED_BYTES:
            return None
        return self._folder.integers(name)

    def _type_name(self, stored: _Stored) -> str:
        """Return a type name for the header entry: equal names mean equal layout, bits, group size
        and float types."""
        types, size = "/".join(sorted(stored.float_types)), stored.size
        held = "" if size.floats is None else f", held as {size.floats}"
        form = f"{size.grouping.bits} bits, groups of {size.group}, {types}{held}"
        return f"{stored.layout.title} {form}"

    def _open(self, module: str, dot: str, quants: TensorInfo, layout: Layout) -> _Stored:
        stacked = layout.stacked and len(quants.shape) == 3
        if len(quants.shape) != 2 and not stacked:
            raise ModelError(
                f"{self.path}: {quants.name}: expected a matrix, the shape is {quants.shape}"
            )
        if 0 in quants.shape:
            raise ModelError(f"{self.path}: {quants.name}: is empty, the shape is {quants.shape}")
        size = self._size(module, dot, quants, layout)
        count = quants.shape[0] if stacked else None
        if size.floats is None and size.columns % ACTIVATION_GROUP:
            raise ModelError(
                f"{self.path}: {quants.name}: {size.columns} columns are not supported, only "
                f"multiples of {ACTIVATION_GROUP}"
            )
        parts = self._parts(f"{module}{dot}", layout, size, () if count is None else (count,))
        return _Stored(layout, count, self._in_order(size, layout, parts), parts)

    def _size(self, module: str, dot: str, quants: TensorInfo, layout: Layout) -> Size:
        header = self._header(f"{module}{dot}", [layout])
        given = self._scheme.grouping_of(module)
        if given is None and layout.infer is not None:
            given = layout.infer(header)
        if given is None:
            raise ModelError(
                f"{self.path}: {quants.name}: its tensors have no shapes of equal groups"
            )
        try:
            return layout.size(quants.shape[-2:], given, header)
        except ValueError as error:
            raise ModelError(f"{self.path}: {quants.name}: {error}") from None

    def _in_order(self, size: Size, layout: Layout, parts: Mapping[str, TensorInfo]) -> Size:
        """Return the size of a matrix, with the type of its scales in `floats` if its columns are
        reordered (desc_act, actorder): columns of a group are then no neighbours, which kernels
        need. Raises ModelError for an invalid list of groups. A list of only -1, which was never
        filled, means that the columns are in order."""
        if layout.order is None or layout.order not in parts:
            return size
        name = parts[layout.order].name
        given: npt.NDArray[Any] = self._folder.integers(name)
        if np.array_equal(given, np.arange(size.columns) // size.group) or (given == -1).all():
            return size
        if not ((given >= 0) & (given < size.groups)).all():
            raise ModelError(f"{self.path}: {name}: not all values are in 0..{size.groups - 1}")
        scales = next(info for info in parts.values() if info.type_name in FLOAT_TYPES)
        return replace(size, floats=FLOAT_TYPES[scales.type_name])

    def _parts(
        self, prefix: str, layout: Layout, size: Size, stacked: tuple[int, ...]
    ) -> dict[str, TensorInfo]:
        """Return the tensors of a matrix by the last component of their names. `stacked`: the
        leading dimension of a stack, or (). Raises ModelError naming a tensor that is missing or
        has the wrong type or shape."""
        found = {}
        for last, part in layout.parts.items():
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
    ) -> Matrix:
        where, size = f"{self.path}: {name}", stored.size
        self._check_shape(stored, arrays)
        try:
            numbers = stored.layout.read(arrays, size)
            if not isinstance(numbers, Numbers):
                return numbers
            if size.floats is not None:
                assert stored.layout.order is not None
                return _reordered(numbers, size, arrays[stored.layout.order])
        except ValueError as error:
            raise ModelError(f"{where}: {error}") from None
        bits, group = size.grouping.held_bits, size.group
        if numbers.minimum is not None:
            return affine_from_minima(bits, group, numbers.q, numbers.scale, numbers.minimum)
        assert numbers.zero is not None
        return affine_from_zero_points(bits, group, numbers.q, numbers.scale, numbers.zero, where)

    def _check_shape(self, stored: _Stored, arrays: Arrays) -> None:
        given = arrays.get("weight_shape")
        if given is not None and tuple(given.tolist()) != stored.shape:
            raise ModelError(
                f"{self.path}: {stored.parts['weight_shape'].name} is {given.tolist()}, but the "
                f"weights have shape {list(stored.shape)}"
            )

    def _sample(self, stored: _Stored) -> Matrix:
        """Return one row of zeros in the largest form that the matrix may have."""
        if stored.size.floats is not None:
            return float_sample(stored.size, stored.size.floats)
        return stored.layout.sample(stored.size, stored.float_types, self._scheme.symmetric)


def _fits(layout: Layout, header: Header) -> bool:
    """Return whether a matrix has all tensors of a layout, in its types."""
    for last, part in layout.parts.items():
        found = header.types.get(last)
        types = part.types if part.other is None else part.types + part.other.types
        if (found is None and not part.optional) or (found is not None and found not in types):
            return False
    return layout.accepts is None or layout.accepts(header)


def _reordered(numbers: Numbers, size: Size, order: npt.NDArray[Any]) -> Dense:
    """Return the weights of columns that belong to the groups `order`, rounded once to the type of
    the scales."""
    assert numbers.zero is not None and size.floats is not None
    q = numbers.q if size.grouping.held_bits == 8 else unpack(numbers.q.view("<u4"), 4)
    values = q.astype(np.float32)
    values -= numbers.zero[:, order]
    values *= numbers.scale[:, order]
    return rounded(values, size.floats)
