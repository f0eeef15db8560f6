"""A checkpoint whose tensors have random values in the layouts of another one's.

It stands in for a file whose speed is measured: kernels take as long for random weights, which need
no reading, no download and no quantization.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.isa.instruction_sets import form_name
from penstock.kernels.random_matrix import random_like
from penstock.kernels.weights import Affine, Dense, Float8, FloatName, Matrix
from penstock.quant.checkpoint import Checkpoint, TensorInfo

STD: Final = 0.02
"""The standard deviation of the weights, so that activations stay finite in any number of
layers."""
_TILE: Final = 65_537
"""Values that are drawn; larger tensors repeat them. It is prime, so that rows differ."""


class RandomCheckpoint:
    """A Checkpoint with the tensors of `file` whose values are random. Reads no data. Matrices of
    one type and one shape are the same arrays, which are kept."""

    def __init__(self, file: Checkpoint) -> None:
        self._file = file
        self._made: dict[tuple[str, str, int, int], Matrix] = {}

    @property
    def path(self) -> Path:
        """See Checkpoint."""
        return self._file.path

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """See Checkpoint."""
        return self._file.tensors

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint."""
        rows, columns = self.tensors[name].shape
        return self._like(name, rows, columns)

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint. All matrices are one."""
        count, rows, columns = self.tensors[name].shape
        return (self._like(name, rows, columns),) * count

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint."""
        return self._file.layout_sample(name)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint. The values are near 1, and those of biases near 0."""
        count = math.prod(self.tensors[name].shape)
        values = np.resize(self._tile, count)
        return values if "bias" in name else np.float32(1) + values

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        first, *others = self.tensors[name].shape
        return self._dense(first, math.prod(others), "f32")

    def _like(self, name: str, rows: int, columns: int) -> Matrix:
        pattern = self._file.layout_sample(name)
        alike = self.tensors[name].type_name, form_name(pattern), rows, columns
        if alike not in self._made:  # two threads may both make it
            self._made[alike] = self._random(pattern, rows, columns)
        return self._made[alike]

    def _random(self, pattern: Matrix, rows: int, columns: int) -> Matrix:
        if isinstance(pattern, Dense):
            return self._dense(rows, columns, pattern.dtype)
        if isinstance(pattern, Float8):
            return _float8_like(pattern, rows, columns)
        return _with_std(random_like(pattern, rows, columns))

    def _dense(self, rows: int, columns: int, dtype: FloatName) -> Dense:
        tile: npt.NDArray[Any] = self._tile
        if dtype == "f16":
            tile = tile.astype(np.float16)
        elif dtype == "bf16":
            tile = (tile.view(np.uint32) >> 16).astype(np.uint16)
        return Dense(np.resize(tile, (rows, columns)), dtype)

    @cached_property
    def _tile(self) -> npt.NDArray[np.float32]:
        drawn = np.random.default_rng(0).standard_normal(_TILE, np.float32)
        drawn *= np.float32(STD)
        return drawn


def _with_std(matrix: Matrix) -> Matrix:
    """Return integers with scales and minima for which the weights have a mean of 0 and roughly the
    standard deviation STD."""
    assert isinstance(matrix, Affine)
    some = matrix.q.reshape(-1)[:_TILE]
    codes = some & 0xF if matrix.bits == 4 else some
    mean, step = float(codes.mean()), STD / max(float(codes.std()), 1.0)
    if matrix.super_scale is not None:
        least = matrix.super_minimum
        return replace(
            matrix,
            super_scale=np.full_like(matrix.super_scale, step),
            super_minimum=None if least is None else np.full_like(least, -mean * step),
        )
    least_direct = matrix.minimum
    return replace(
        matrix,
        scale=np.full_like(matrix.scale, step),
        minimum=None if least_direct is None else np.full_like(least_direct, -mean * step),
    )


def _float8_like(pattern: Float8, rows: int, columns: int) -> Float8:
    """Return codes of numbers between -15 and 15, with scales in the blocks of `pattern`."""
    codes = np.resize(np.arange(256, dtype=np.uint8) & 0xD7, (rows, columns))
    grid = tuple(
        -(-size // block) for size, block in zip((rows, columns), pattern.block, strict=True)
    )
    return Float8(codes, np.full(grid, STD, np.float32), pattern.block)
