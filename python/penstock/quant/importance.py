"""Importance matrices: how much each input column of a weight matters, from a text or from traffic.
Read from and written to the GGUF files of llama.cpp's `llama-imatrix`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.column_squares import ColumnSquares
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.gguf.gguf_layout import ALIGNMENT, GgufLayout, NewTensor, pair

Floats: TypeAlias = npt.NDArray[np.float32]

SUMS: Final = ".in_sum2"
COUNTS: Final = ".counts"
CHUNK_SIZE: Final = 512
"""The number of tokens of a chunk of calibration text, as llama.cpp's default."""
MAX_MEAN: Final = 1e20
MAX_COUNT: Final = 1e15
"""Far more than the inputs of any model have. Squared errors times 1e20 fit float32."""


@dataclass(frozen=True)
class ImportanceMatrix:
    """The sums of squares of the inputs of a model's matrices.

    - `squares`: name of the tensor in a GGUF file, with `.weight`, -> its sums. A tensor of all
      experts of a layer has sums for each expert.
    - `datasets`: the names of the texts.
    - `chunk_count`, `chunk_size`: the number of chunks of text, and the tokens of a chunk.
    """

    squares: Mapping[str, ColumnSquares]
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = CHUNK_SIZE
    _means: dict[str, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)

    def importance(self, name: str) -> Floats | None:
        """Return the mean square of each input column of a tensor, [E, C] float32 with one row per
        expert, one row for a tensor without experts; None if there are no sums of it. All columns
        of an expert that no token chose have the importance 1."""
        if name not in self.squares:
            return None
        if name not in self._means:
            self._means[name] = self.squares[name].means()
        return self._means[name]

    @classmethod
    def read(cls, path: Path) -> ImportanceMatrix:
        """Read a file of `llama-imatrix` in its GGUF form. Raises ModelError naming the file and
        the key or tensor at fault."""
        file = GgufFile(path)
        if file.text("general.type", "") != "imatrix":
            raise ModelError(f"{path}: general.type: is not imatrix, so this is no importance file")
        names = [name.removesuffix(SUMS) for name in file.tensors if name.endswith(SUMS)]
        return cls(
            {name: _read_squares(file, name) for name in names},
            tuple(file.strings("imatrix.datasets")),
            file.integer("imatrix.chunk_count", 0),
            file.integer("imatrix.chunk_size", CHUNK_SIZE),
        )

    def write(self, path: Path) -> None:
        """Write the file, which replaces an existing one when it is complete."""
        metadata: dict[str, Any] = {
            "general.type": "imatrix",
            "imatrix.datasets": self.datasets,
            "imatrix.chunk_count": self.chunk_count,
            "imatrix.chunk_size": self.chunk_size,
        }
        tensors: dict[str, Floats] = {}
        for name, squares in self.squares.items():
            tensors[name + SUMS] = squares.sums.astype("<f4")
            tensors[name + COUNTS] = squares.counts.astype("<f4")[:, None]
        layout = GgufLayout(
            {key: pair(key, value) for key, value in metadata.items()},
            [NewTensor(name, values.shape, "F32") for name, values in tensors.items()],
        )
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("wb") as file:
            file.write(layout.header)
            for values in tensors.values():
                data = values.tobytes()
                file.write(data + bytes(-len(data) % ALIGNMENT))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def _read_squares(file: GgufFile, name: str) -> ColumnSquares:
    if name + COUNTS not in file.tensors:
        raise ModelError(f"{file.path}: {name}{COUNTS}: is missing")
    sums, counts = file.flattened(name + SUMS), file.flattened(name + COUNTS)
    if sums.dtype != "f32" or counts.dtype != "f32":
        raise ModelError(f"{file.path}: {name}: sums and counts must be float32")
    if counts.shape != (sums.shape[0], 1):
        raise ModelError(f"{file.path}: {name}{COUNTS}: expected {sums.shape[0]} counts")
    return checked_squares(file.path, name, sums.data, counts.data[:, 0])


def checked_squares(
    path: Path, name: str, sums: npt.NDArray[np.generic], counts: npt.NDArray[np.generic]
) -> ColumnSquares:
    """Return sums [E, C] and counts [E] that were read from the file `path`. Raises ModelError that
    names the tensor if they are no sums of squares, or so large that quantization would not be
    finite."""
    wide = sums.astype(np.float64), counts.astype(np.float64)
    if not all((np.isfinite(values) & (values >= 0)).all() for values in wide):
        raise ModelError(f"{path}: {name}: sums and counts must be finite and not negative")
    largest = max(float((wide[0] / np.maximum(wide[1], 1)[:, None]).max(initial=0)), 0.0)
    if largest > MAX_MEAN or wide[1].max(initial=0) > MAX_COUNT:
        raise ModelError(
            f"{path}: {name}: a mean square is {largest:g} of {wide[1].max(initial=0):g} inputs; at"
            f" most {MAX_MEAN:g} of {MAX_COUNT:g} are possible"
        )
    squares = ColumnSquares(*sums.shape)
    squares.sums += wide[0]
    squares.counts += wide[1].astype(np.int64)
    return squares
