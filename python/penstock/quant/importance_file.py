"""Reads importance matrices in both formats of llama.cpp's `llama-imatrix`: GGUF, and the older
binary format."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.column_squares import ColumnSquares
from penstock.quant.importance import ImportanceMatrix, checked_squares
from penstock.quant.mapped_file import MappedFile

MAX_ENTRIES: Final = 1 << 16
MAX_NAME_BYTES: Final = 1 << 10


def read_importance(path: Path) -> ImportanceMatrix:
    """Read an importance matrix of either format. Raises ModelError naming the file and the entry
    at fault."""
    file = MappedFile(path)
    matrix = ImportanceMatrix.read(path) if file.map[:4] == b"GGUF" else _read_legacy(file)
    if not matrix.squares:
        raise ModelError(f"{path}: has no entries, so it is no importance matrix")
    return matrix


def importance_rows(
    matrix: ImportanceMatrix, name: str, num_matrices: int, columns: int
) -> npt.NDArray[np.float32] | None:
    """Return the importances of a tensor, one row per matrix of a stack, or None without an entry.
    The older format has the rows of a stack as one. Raises ModelError if the entry is of a tensor
    of another shape."""
    means = matrix.importance(name)
    if means is None:
        return None
    if means.shape not in ((num_matrices, columns), (1, num_matrices * columns)):
        raise ModelError(
            f"importance matrix: {name}: {means.size} values, but the tensor has"
            f" {num_matrices * columns} columns; it is of another model"
        )
    return means.reshape(num_matrices, columns)


def _read_legacy(file: MappedFile) -> ImportanceMatrix:
    return ImportanceMatrix(_Legacy(file).entries())


class _Legacy:
    """The binary format: a count, then entries of name, number of calls, and sums."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._offset = 0

    def entries(self) -> dict[str, ColumnSquares]:
        """Read all entries. The name of the text, which may follow, is not read."""
        found = {}
        for number in range(self._integer("the number of entries", MAX_ENTRIES)):
            length = self._integer(f"entry {number}: the length of its name", MAX_NAME_BYTES)
            name = bytes(self._take(length, f"entry {number}")).decode("utf-8", "replace")
            calls = self._integer(f"{name}: the number of calls", 2**31)
            values = self._integer(f"{name}: the number of values", 2**31)
            sums = np.frombuffer(self._take(4 * values, name), "<f4")
            # The format does not tell how many experts a layer has.
            counts = np.array([max(calls, 1)])
            found[name] = checked_squares(self._file.path, name, sums[None], counts)
        return found

    def _integer(self, what: str, limit: int) -> int:
        value: int = struct.unpack("<i", self._take(4, what))[0]
        if not 0 <= value <= limit:
            raise ModelError(f"{self._file.path}: {what} is {value}; not an importance matrix")
        return value

    def _take(self, count: int, what: str) -> memoryview:
        end = self._offset + count
        if end > self._file.size:
            raise ModelError(f"{self._file.path}: {what}: the file ends in the middle of it")
        part = memoryview(self._file.map)[self._offset : end]
        self._offset = end
        return part
