"""Reads the tensors of towers and projectors from a checkpoint, which may also contain a language
model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, Linear, Matrix
from penstock.models.checkpoint.check_shapes import Shape, check_shapes
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize

Floats: TypeAlias = npt.NDArray[np.float32]
WeightType: TypeAlias = Literal["auto", "f32"]

_ANYTHING: Final = re.compile(r".*", re.DOTALL)


class TowerTensors:
    """The tensors of a tower.

    - `root`: precedes all names.
    - `shapes`: name without `root` -> shape of every tensor that must exist.
    - `dtype`: "f32" dequantizes every matrix; "auto" keeps the file's type.

    Raises ModelError naming a tensor that is missing or has a wrong shape.
    """

    def __init__(
        self, checkpoint: Checkpoint, root: str, shapes: Mapping[str, Shape], dtype: WeightType
    ) -> None:
        self._checkpoint = checkpoint
        self._root = root
        self._dtype = dtype
        self._names = [root + name for name in shapes]
        expected = {root + name: shape for name, shape in shapes.items()}
        check_shapes(checkpoint, expected, {}, _ANYTHING)

    @property
    def size_bytes(self) -> int:
        """The bytes of the tensors in memory."""
        infos = (self._checkpoint.tensors[name] for name in self._names)
        if self._dtype == "f32":
            return sum(4 * int(np.prod(info.shape, dtype=np.int64)) for info in infos)
        return sum(info.size_bytes for info in infos)

    def vector(self, name: str) -> Floats:
        """Return the tensor `name` as one vector of all its elements."""
        matrix = self._checkpoint.flattened(self._root + name)
        return np.array(dequantize(matrix)).reshape(-1)

    def table(self, name: str, rows: int) -> Floats:
        """Return the tensor `name` of any shape as a matrix of `rows` rows, float32."""
        if len(self._checkpoint.tensors[self._root + name].shape) == 2:
            return np.array(dequantize(self._checkpoint.matrix(self._root + name)))
        return self.vector(name).reshape(rows, -1)

    def flattened(self, name: str) -> Dense:
        """Return a float tensor of any shape as a matrix, one row per index of the first
        dimension."""
        matrix = self._checkpoint.flattened(self._root + name)
        return Dense(dequantize(matrix), "f32") if self._dtype == "f32" else as_bf16(matrix)

    def matrix(self, name: str) -> Matrix:
        """Return a matrix."""
        matrix = self._checkpoint.matrix(self._root + name)
        if self._dtype == "f32":
            return Dense(dequantize(matrix), "f32")
        return as_bf16(matrix) if isinstance(matrix, Dense) else matrix

    def linear(self, names: Sequence[str], *, biased: bool) -> Linear:
        """Return the linear layer whose rows are those of the layers `names`, without `.weight` and
        `.bias`."""
        bias = np.concatenate([self.vector(f"{name}.bias") for name in names]) if biased else None
        return tower_linear(tuple(self.matrix(f"{name}.weight") for name in names), bias)


def tower_linear(parts: tuple[Matrix, ...], bias: Floats | None) -> Linear:
    """Return a layer of a tower, whose float16 weights may be multiplied with the error of float16
    arithmetic."""
    return Linear(parts, bias, "f16")


def is_coarse(weight: Linear) -> bool:
    """Return whether all weights of a layer have at most the precision of bfloat16: they are
    bfloat16 or quantized."""
    return not any(isinstance(part, Dense) and part.dtype != "bf16" for part in weight.parts)


def as_bf16(matrix: Dense) -> Dense:
    """Return a float16 matrix as bfloat16 if no weight changes, as in a file that was converted
    from bfloat16, else unchanged. Processors multiply bfloat16 twice as fast."""
    if matrix.dtype != "f16":
        return matrix
    bits = matrix.data.astype(np.float32).view(np.uint32)
    if (bits & 0xFFFF).any():
        return matrix
    return Dense((bits >> 16).astype(np.uint16), "bf16")


def find_root(roots: Iterable[str], name: str, checkpoint: Checkpoint) -> str:
    """Return the first of `roots` for which the checkpoint has a tensor `root + name`, or the first
    of all if it has none."""
    candidates = tuple(roots)
    found = (root for root in candidates if root + name in checkpoint.tensors)
    return next(found, candidates[0])
