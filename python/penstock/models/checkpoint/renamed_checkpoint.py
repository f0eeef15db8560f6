"""Presents the tensors of a checkpoint under other names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, Matrix
from penstock.quant.checkpoint import Checkpoint, Device, TensorInfo, extra_bytes, size_note


class RenamedCheckpoint:
    """A Checkpoint over another one. Dimensions of size 1 at the end of a vector's shape, which
    llama.cpp's converter adds to biases of convolutions, are left out.

    - `name_of(name)`: returns the name under which a tensor of the file is presented; None: it is
      left out.
    """

    def __init__(self, file: Checkpoint, name_of: Callable[[str], str | None]) -> None:
        self._file = file
        self._stored = {
            shown: name for name in file.tensors if (shown := name_of(name)) is not None
        }
        self.tensors: Mapping[str, TensorInfo] = {
            shown: replace(_as_vector(file.tensors[name]), name=shown)
            for shown, name in self._stored.items()
        }

    @property
    def path(self) -> Path:
        """See Checkpoint."""
        return self._file.path

    @property
    def extra_bytes(self) -> int:
        """See SizedCheckpoint."""
        return extra_bytes(self._file)

    def size_note(self, device: Device) -> str:
        """See SizedCheckpoint."""
        return size_note(self._file, device)

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint."""
        return self._file.matrix(self._stored[name])

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint."""
        return self._file.stack(self._stored[name])

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint."""
        return self._file.layout_sample(self._stored[name])

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        return self._file.vector(self._stored[name])

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        return self._file.flattened(self._stored[name])


def _as_vector(info: TensorInfo) -> TensorInfo:
    is_vector = len(info.shape) == 2 and info.shape[1] == 1
    return replace(info, shape=info.shape[:1]) if is_vector else info
