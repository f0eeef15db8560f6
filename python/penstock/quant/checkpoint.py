"""What a file of weights is to a model: names, shapes and numbers, whatever the format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Matrix


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the header lists it. `shape` is in C order: the last dimension is contiguous.
    `offset` and `size_bytes` say where its data lie in its file; `type_name` is the format's."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    size_bytes: int


class Checkpoint(Protocol):
    """An opened file, or a set of shards. Tensors are read (and converted) when asked for, from
    any thread. All methods raise ModelError naming file and tensor."""

    @property
    def path(self) -> Path: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def matrix(self, name: str) -> Matrix:
        """A two-dimensional tensor in a layout of the kernels, converted exactly. Float tensors
        are views of the mapped file: read only."""
        ...

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """A three-dimensional tensor [E, N, K] as E matrices, each as `matrix` gives it."""
        ...

    def layout_sample(self, name: str) -> Matrix:
        """A few whole blocks of zeros, stored as the matrix or the matrices `name` are: what each
        element of theirs takes when they are packed, one of the tensor takes. Reads no data."""
        ...

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """A one-dimensional float tensor as float32, copied out of the file."""
        ...
