"""A checkpoint whose float matrices are quantized when they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.config.weight_types import WeightForm
from penstock.kernels.weights import Dense, Matrix
from penstock.quant.affine import unify_affine
from penstock.quant.checkpoint import Checkpoint, TensorInfo
from penstock.quant.quantize import GROUP
from penstock.quant.quantize_matrix import MatrixQuantizer, form_sample
from penstock.quant.rest import Rest, no_rest
from penstock.quant.weight_slices import size_bytes

NOTHING_KNOWN: Final[Mapping[str, npt.NDArray[np.float32]]] = {}


class QuantizingCheckpoint:
    """A Checkpoint that reads from `checkpoint` and quantizes some of its matrices. `forms`:
    matrix name -> type. Matrices that are not floats, or whose columns cannot be divided into
    whole groups, are unchanged. `importance`: matrix name -> the importance [E, C] of its columns,
    for each of its E matrices; a matrix without is quantized as if all columns counted the same.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        forms: Mapping[str, WeightForm],
        importance: Mapping[str, npt.NDArray[np.float32]] = NOTHING_KNOWN,
        threads: int = 1,
        rest: Rest = no_rest,
    ) -> None:
        """`threads`: the number of threads that quantize. `rest`: called while they do, and before
        each matrix."""
        self.path = checkpoint.path
        self._inner = checkpoint
        self._importance = importance
        self._quantizer = MatrixQuantizer(threads, rest)
        self._rest = rest
        self._forms = {name: own for name, own in forms.items() if self._can_be_quantized(name)}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """See Checkpoint. These are the tensors of the file, before quantization."""
        return self._inner.tensors

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint. Also raises ModelError if a number to quantize is not finite."""
        self._rest()
        return self._quantized(name, self._inner.matrix(name), 0)

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint. Raises as `matrix` does."""
        self._rest()
        each = enumerate(self._inner.stack(name))
        matrices = [self._quantized(name, matrix, number) for number, matrix in each]
        return unify_affine(matrices, f"{self.path}: {name}")

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint."""
        inner = self._inner.layout_sample(name)
        if name not in self._forms:
            return inner
        return form_sample(self._forms[name], self.tensors[name].shape[-1])

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        return self._inner.vector(name)

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        return self._inner.flattened(name)

    @property
    def saved_bytes(self) -> int:
        """The number of bytes that quantization saves."""
        return sum(map(self._saved_bytes, self._forms))

    @property
    def num_quantized(self) -> int:
        """The number of tensors that are quantized."""
        return len(self._forms)

    def _saved_bytes(self, name: str) -> int:
        count = math.prod(self.tensors[name].shape)
        samples = (self._inner.layout_sample(name), self.layout_sample(name))
        before, after = (Fraction(size_bytes(one), math.prod(one.shape)) for one in samples)
        return math.floor(count * (before - after))

    def _can_be_quantized(self, name: str) -> bool:
        info = self._inner.tensors.get(name)
        if info is None or len(info.shape) < 2 or info.shape[-1] % GROUP:
            return False
        return isinstance(self._inner.layout_sample(name), Dense)

    def _quantized(self, name: str, matrix: Matrix, number: int) -> Matrix:
        if name not in self._forms:
            return matrix
        assert isinstance(matrix, Dense), "as its layout sample is"
        importance = self._importance.get(name)
        if importance is not None and importance.shape[1] != matrix.shape[1]:
            raise ModelError(
                f"{self.path}: {name}: it has {matrix.shape[1]} columns, the importance matrix"
                f" {importance.shape[1]}"
            )
        own = None if importance is None else importance[number]
        try:
            return self._quantizer.quantized(matrix, self._forms[name], own)
        except ValueError as error:
            raise ModelError(f"{self.path}: {name}: {error}") from None
