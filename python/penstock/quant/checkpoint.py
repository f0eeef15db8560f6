"""The interface of a weight file of any format: names, shapes and numbers."""

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
    """A tensor of a file's header. `shape`: in C order, the last dimension is contiguous. `offset`
    and `size_bytes`: its data in the file. `type_name`: in the format's own notation."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    size_bytes: int


class Checkpoint(Protocol):
    """An opened file, or a set of shards. Tensors are read and converted on demand, from any
    thread. All methods raise ModelError naming file and tensor."""

    @property
    def path(self) -> Path:
        """The file or folder."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The tensors by name."""
        ...

    def matrix(self, name: str) -> Matrix:
        """Return a two-dimensional tensor in a layout of the kernels, converted exactly. Float
        tensors are read-only views of the mapped file."""
        ...

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """Return a three-dimensional tensor [E, N, C] as E matrices, each as `matrix` returns
        it."""
        ...

    def layout_sample(self, name: str) -> Matrix:
        """Return a few whole blocks of zeros in the layout of the matrix or matrices `name`. It has
        as many bytes per element as they have. Reads no data."""
        ...

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Return a one-dimensional float tensor as float32, copied from the file."""
        ...
