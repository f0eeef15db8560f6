"""The interface of weight files, common to all file formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, Matrix

Device = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The header entry of a tensor.

    - `shape`: in C order; the last dimension is contiguous.
    - `type_name`: the type in the file format's own notation.
    - `offset`, `size_bytes`: the position of the data in the file, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    size_bytes: int


class Checkpoint(Protocol):
    """An opened weight file or set of shards. Tensors are read and converted on demand; every
    method may be called from any thread. All methods raise ModelError naming file and tensor."""

    @property
    def path(self) -> Path:
        """The path of the file or folder."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The header entries of the tensors, by name."""
        ...

    def matrix(self, name: str) -> Matrix:
        """Return a two-dimensional tensor, converted exactly into a kernel layout. Float tensors
        are read-only views of the mapped file."""
        ...

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """Convert a three-dimensional tensor [E, N, C] to E matrices, as `matrix` does."""
        ...

    def layout_sample(self, name: str) -> Matrix:
        """Return a small matrix of zeros in the layout that `matrix` or `stack` returns for `name`,
        with the same number of bytes per element. Reads no data."""
        ...

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Return a one-dimensional float tensor as a float32 copy."""
        ...

    def flattened(self, name: str) -> Dense:
        """Return a float tensor of any shape as a matrix: one row per index of the first dimension,
        with the elements of all other dimensions. A convolution with a stride of its own size is
        the product with this matrix."""
        ...


@runtime_checkable
class SizedCheckpoint(Protocol):
    """A checkpoint some of whose weights need more memory than space in the file."""

    @property
    def extra_bytes(self) -> int:
        """The bytes that the weights may need on a CPU beyond the size of their files."""
        ...

    def size_note(self, device: Device) -> str:
        """Return the part of the log line about memory that names the formats held in more bits
        than in the file. It starts with "; ", or is empty."""
        ...


def extra_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes that a checkpoint's weights need on a CPU beyond the size of its files."""
    return checkpoint.extra_bytes if isinstance(checkpoint, SizedCheckpoint) else 0


def size_note(checkpoint: Checkpoint, device: Device) -> str:
    """Return the part of the log line about memory that explains `extra_bytes`."""
    return checkpoint.size_note(device) if isinstance(checkpoint, SizedCheckpoint) else ""
