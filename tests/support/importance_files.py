"""Importance matrices in the older binary format of llama.cpp's `llama-imatrix`."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.kernels.column_squares import ColumnSquares
from penstock.quant.importance import ImportanceMatrix

CALLS = 4


def legacy_bytes(matrix: ImportanceMatrix) -> bytes:
    """Return a file of the older format: a count, then entries of name, calls, and mean squares
    times calls. The experts of a layer are one entry. The calls and the name of the text follow."""
    parts = [struct.pack("<i", len(matrix.squares))]
    for name in matrix.squares:
        means = matrix.importance(name)
        assert means is not None
        parts.append(struct.pack("<i", len(name)) + name.encode())
        parts.append(struct.pack("<ii", CALLS, means.size))
        parts.append((means * CALLS).astype("<f4").tobytes())
    return b"".join(parts) + struct.pack("<ii", CALLS, 4) + b"text"


def write_both(matrix: ImportanceMatrix, folder: Path) -> dict[str, Path]:
    """Write the matrix in both formats. Return their paths."""
    paths = {"gguf": folder / "matrix.gguf", "legacy": folder / "matrix.dat"}
    matrix.write(paths["gguf"])
    paths["legacy"].write_bytes(legacy_bytes(matrix))
    return paths


def squares_of(means: npt.NDArray[np.float32]) -> ColumnSquares:
    """Return sums with these means [E, C]."""
    made = ColumnSquares(*means.shape)
    made.sums += means * np.float32(CALLS)
    made.counts += CALLS
    return made
