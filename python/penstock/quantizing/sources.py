"""The weights that are quantized: tensors of a GGUF file, in pieces that fit in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Matrix
from penstock.quant.checkpoint import TensorInfo
from penstock.quant.dequantize import dequantize
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.weight_slices import row_range

Floats = npt.NDArray[np.float32]

_PIECE_NUMBERS: Final = 1 << 23
_DROPPED: Final = ("split.", "general.alignment")


class Source(Protocol):
    """A model whose tensors have the names, and the metadata, of a GGUF file."""

    @property
    def path(self) -> Path:
        """The path of the file or folder."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors, in the order in which they are written."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is not written."""
        ...

    def pairs(self) -> dict[str, bytes]:
        """Return the metadata: key -> its encoded pair."""
        ...

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor as `tensors` describes it."""
        ...

    def rows(self, name: str) -> Iterator[tuple[int, Floats]]:
        """Yield the rows of a matrix, or of the matrices of a stack, some at a time, as floats:
        (the index of the matrix, rows [n, C])."""
        ...


class GgufSource:
    """A GGUF file, or the files of a split set. Scales of NVFP4 tensors are multiplied in."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.path = file.path
        self.tensors: Mapping[str, TensorInfo] = file.tensors
        self.notes: tuple[str, ...] = ()

    def pairs(self) -> dict[str, bytes]:
        """See Source."""
        pairs = self._file.pairs()
        return {key: raw for key, raw in pairs.items() if not key.startswith(_DROPPED)}

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """See Source."""
        return self._file.raw(name)

    def rows(self, name: str) -> Iterator[tuple[int, Floats]]:
        """See Source. Raises ModelError naming a tensor whose numbers cannot be read."""
        shape = self.tensors[name].shape
        if len(shape) == 2:
            matrices: tuple[Matrix, ...] = (self._file.matrix(name),)
        elif len(shape) == 3:
            matrices = self._file.stack(name)
        else:
            raise ModelError(f"{self.path}: {name}: a matrix is expected, the shape is {shape}")
        for index, matrix in enumerate(matrices):
            yield from ((index, rows) for rows in pieces(matrix))


def pieces(matrix: Matrix) -> Iterator[Floats]:
    """Yield consecutive rows of a matrix as floats, as many as fit in memory."""
    rows, columns = matrix.shape
    step = max(_PIECE_NUMBERS // columns, 1)
    for first in range(0, rows, step):
        yield dequantize(row_range(matrix, slice(first, min(first + step, rows))))


def num_weights(source: Source) -> int:
    """Return the number of weights of all tensors."""
    return sum(math.prod(info.shape) for info in source.tensors.values())
