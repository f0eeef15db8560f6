"""Writes a quantized model as a GGUF file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock import _native
from penstock.base.errors import ModelError
from penstock.quant.encode.encoder import encode
from penstock.quant.encode.recipes import Recipe
from penstock.quant.gguf.gguf_layout import GgufLayout, pair
from penstock.quant.importance import ImportanceMatrix
from penstock.quant.importance_file import importance_rows
from penstock.quantizing.partial_file import PartialFile, stamp
from penstock.quantizing.sources import Source
from penstock.quantizing.type_plan import PlannedTensor

Progress = Callable[[int, int], None]
"""Called with the bytes of the output that are done, and with those of the whole output."""

_QUANTIZATION_VERSION: Final = 2


def write_gguf(
    path: Path,
    source: Source,
    planned: Sequence[PlannedTensor],
    recipe: Recipe,
    importance: ImportanceMatrix | None,
    pool: _native.ThreadPool,
    progress: Progress,
) -> int:
    """Write `path`, continuing an interrupted run with the same arguments. Return its size in
    bytes. Raises ModelError naming the tensor that cannot be quantized, or the file that cannot be
    written."""
    pairs = source.pairs() | {
        "general.file_type": pair("general.file_type", recipe.file_type),
        "general.quantization_version": pair("general.quantization_version", _QUANTIZATION_VERSION),
    }
    layout = GgufLayout(pairs, [one.target for one in planned])
    digest = _digest(source, layout, importance)
    _check_importance(source, planned, importance)
    with PartialFile(path, layout.size_bytes, digest) as file:
        file.write(0, layout.header)
        start = file.finished
        if start:
            progress(layout.offsets[start - 1], layout.size_bytes)
        for one, offset in list(zip(planned, layout.offsets, strict=True))[start:]:
            _write_tensor(file, offset, source, one, importance, pool, progress, layout)
            file.finish_piece()
        file.publish()
    progress(layout.size_bytes, layout.size_bytes)
    return layout.size_bytes


def _write_tensor(
    file: PartialFile,
    offset: int,
    source: Source,
    planned: PlannedTensor,
    importance: ImportanceMatrix | None,
    pool: _native.ThreadPool,
    progress: Progress,
    layout: GgufLayout,
) -> None:
    target = planned.target
    if planned.kept:
        file.write(offset, source.raw(target.name))
        progress(offset + target.size_bytes, layout.size_bytes)
        return
    own = _importance(importance, planned)
    for index, rows in source.rows(target.name):
        try:
            raw = encode(target.type_name, rows, None if own is None else own[index], pool=pool)
        except ValueError as error:
            raise ModelError(f"{source.path}: {target.name}: {error}") from None
        file.write(offset, raw)
        offset += raw.nbytes
        progress(offset, layout.size_bytes)


def _importance(
    importance: ImportanceMatrix | None, planned: PlannedTensor
) -> npt.NDArray[np.float32] | None:
    if importance is None:
        return None
    shape = planned.target.shape
    count = shape[0] if len(shape) == 3 else 1
    return importance_rows(importance, planned.target.name, count, shape[-1])


def _check_importance(
    source: Source, planned: Sequence[PlannedTensor], importance: ImportanceMatrix | None
) -> None:
    """Raise ModelError if the importance matrix is of another model."""
    if importance is not None and not importance.squares.keys() & source.tensors.keys():
        raise ModelError(
            f"importance matrix: none of its names is a tensor of {source.path};"
            f" the first is {min(importance.squares)}"
        )
    for one in planned:
        if not one.kept:
            _importance(importance, one)


def _digest(source: Source, layout: GgufLayout, importance: ImportanceMatrix | None) -> str:
    """Return a digest of everything that decides the bytes of the output."""
    digest = hashlib.sha256(layout.header)
    digest.update(stamp(source.path).encode())
    squares = {} if importance is None else importance.squares
    for name, one in sorted(squares.items()):
        digest.update(name.encode() + one.sums.tobytes() + one.counts.tobytes())
    return digest.hexdigest()
