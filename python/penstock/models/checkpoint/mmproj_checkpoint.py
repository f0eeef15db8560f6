"""Presents the tensors of an `mmproj` GGUF file in the form that a Hugging Face folder has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Matrix
from penstock.quant.checkpoint import Checkpoint, TensorInfo
from penstock.quant.dequantize import dequantize
from penstock.quant.weight_slices import take_rows

SECOND_KERNEL = ".1"
RowOrder: TypeAlias = Callable[[str], npt.NDArray[np.intp] | None]
"""Returns the rows of the file, in the order of the folder, for a tensor's name; None: all rows are
in order."""


def in_order(name: str) -> npt.NDArray[np.intp] | None:
    """Return None: the rows of all tensors are in order."""
    return None


class MmprojCheckpoint:
    """A Checkpoint over an `mmproj` file.

    - `order`: undoes permutations of rows by llama.cpp's converter.

    Leading dimensions of size 1, which some versions of the converter keep, are left out. A 3-D
    convolution over two frames, which the file has as two tensors `NAME` and `NAME.1`, is one
    tensor NAME [N, channels, 2, rows, columns].
    """

    def __init__(self, file: Checkpoint, order: RowOrder = in_order) -> None:
        self._file = file
        self._order = order
        self.tensors: Mapping[str, TensorInfo] = {
            name: self._info(name, info) for name, info in file.tensors.items()
        }

    @property
    def path(self) -> Path:
        """See Checkpoint."""
        return self._file.path

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint."""
        if len(self._file.tensors[name].shape) > 2 and len(self.tensors[name].shape) == 2:
            data = self._file.flattened(name).data.reshape(self.tensors[name].shape)
            return Dense(data, self._file.flattened(name).dtype)
        matrix, order = self._file.matrix(name), self._order(name)
        return matrix if order is None else take_rows(matrix, order)

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint."""
        return self._file.stack(name)

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint."""
        return self._file.layout_sample(name)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        vector, order = self._file.vector(name), self._order(name)
        return vector if order is None else vector[order]

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        dense, order = self._file.flattened(name), self._order(name)
        if name + SECOND_KERNEL in self._file.tensors:
            return _both_kernels(dense, self._file.flattened(name + SECOND_KERNEL))
        if order is None:
            return dense
        axis = 0 if len(dense.data) == len(order) else 1  # a vector is one row
        return Dense(np.ascontiguousarray(np.take(dense.data, order, axis)), dense.dtype)

    def _info(self, name: str, info: TensorInfo) -> TensorInfo:
        second = self._file.tensors.get(name + SECOND_KERNEL)
        if second is None:
            return replace(info, shape=_without_leading_ones(info.shape))
        if second.shape != info.shape or len(info.shape) != 4:
            raise ModelError(
                f"{self.path}: tensor {second.name} has shape {second.shape}, but {name} has"
                f" {info.shape}"
            )
        shape = (*info.shape[:2], 2, *info.shape[2:])
        return replace(info, shape=shape, size_bytes=info.size_bytes + second.size_bytes)


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape


def _both_kernels(first: Dense, second: Dense) -> Dense:
    """Return the weights [N, 3 * 2 * rows * columns] of both kernels, with channels first."""
    if first.dtype == second.dtype:
        arrays: tuple[Any, Any] = first.data, second.data
        dtype = first.dtype
    else:
        arrays, dtype = (dequantize(first), dequantize(second)), "f32"
    rows = len(arrays[0])
    split = [array.reshape(rows, 3, 1, -1) for array in arrays]
    return Dense(np.concatenate(split, axis=2).reshape(rows, -1), dtype)
