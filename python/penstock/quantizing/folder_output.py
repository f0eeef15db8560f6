"""Writes a quantized model as a Hugging Face folder: compressed-tensors, format pack-quantized.

Matrices of layers become integers of 4 or 8 bits, with a float16 scale for each 32 columns.
Embedding, head, norms, biases and matrices without a type are copied, and so are the other files of
the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock import _native
from penstock.base.errors import ModelError
from penstock.kernels.weights import Affine
from penstock.quant.encode.encoder import encode
from penstock.quant.gguf.ggml_types import TYPES
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.safetensors_file import ITEM_BYTES, SINGLE_NAME
from penstock.quantizing.folder_plan import (
    GROUP,
    Bits,
    FolderPlan,
    FolderSource,
    quantization_config,
)
from penstock.quantizing.gguf_output import Progress
from penstock.quantizing.partial_file import (
    PartialFile,
    disk_errors,
    refuse_to_overwrite,
    stamp,
)
from penstock.quantizing.sources import Floats, pieces

_TYPES: Final[dict[Bits, str]] = {4: "Q4_0", 8: "Q8_0"}
_NO_IMPORTANCES: Final[Mapping[str, Floats]] = {}
_WEIGHT_FILES: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
_INDEX_ENDING: Final = ".index.json"
_MAX_CONFIG_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class FolderTensor:
    """A tensor to be written. `offset`: after the header."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def write_folder(
    path: Path,
    source: FolderSource,
    plan: FolderPlan,
    pool: _native.ThreadPool,
    progress: Progress,
    importance: Mapping[str, Floats] = _NO_IMPORTANCES,
) -> int:
    """Write the folder `path`, continuing an interrupted run with the same arguments. Return the
    bytes of its weights. `importance`: name of a matrix -> how much the columns count, [1, C].
    Raises ModelError naming the tensor that cannot be quantized, or the file that cannot be
    written."""
    refuse_to_overwrite(path)
    partial = path.with_name(f"{path.name}.partial")
    layout = _Layout(_planned(source, plan), _digest(source, importance))
    with disk_errors(partial):
        partial.mkdir(exist_ok=True)
    weights = partial / SINGLE_NAME
    try:
        if not _is_complete(weights, layout.header):
            _write_weights(weights, layout, source, plan, pool, progress, importance)
    finally:
        with contextlib.suppress(OSError):  # there are files in it
            partial.rmdir()
    with disk_errors(path):
        _copy_other_files(source, partial, plan)
        os.rename(partial, path)
    return layout.size_bytes


class _Layout:
    """The file of weights: its tensors by the names of those from which they are made, and its
    header."""

    def __init__(self, planned: Mapping[str, Sequence[FolderTensor]], digest: str) -> None:
        tensors = [one for each in planned.values() for one in each]
        self.planned = planned
        self.header = _header(tensors, digest)
        self.size_bytes = len(self.header) + sum(one.size_bytes for one in tensors)


def _write_weights(
    path: Path,
    layout: _Layout,
    source: FolderSource,
    plan: FolderPlan,
    pool: _native.ThreadPool,
    progress: Progress,
    importance: Mapping[str, Floats],
) -> None:
    start = len(layout.header)
    digest = hashlib.sha256(layout.header).hexdigest()
    with PartialFile(path, layout.size_bytes, digest) as file:
        file.write(0, layout.header)
        done, first = start, file.finished
        for number, (name, tensors) in enumerate(layout.planned.items()):
            done += sum(one.size_bytes for one in tensors)
            if number < first:
                continue
            if name not in plan.bits:
                file.write(start + tensors[0].offset, source.weights.raw(name))
            else:
                rows = _encoded(source, name, plan.bits[name], importance.get(name), pool)
                _write(file, start, rows, source.weights.tensors[name].shape, tensors)
            file.finish_piece()
            progress(done, layout.size_bytes)
        file.publish()


def _is_complete(weights: Path, header: bytes) -> bool:
    """Return whether an earlier run has written the same tensors and was interrupted after that. A
    file with other tensors is removed."""
    if not weights.exists():
        return False
    with disk_errors(weights), weights.open("rb") as file:
        same = file.read(len(header)) == header
    if not same:
        weights.unlink()
    return same


def _planned(source: FolderSource, plan: FolderPlan) -> dict[str, list[FolderTensor]]:
    """Return the tensors to be written, by the names of those from which they are made. Tensors
    of wide types come first, so that all are aligned."""
    made: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {}
    for name, info in source.weights.tensors.items():
        bits = plan.bits.get(name)
        if bits is None:
            made[name] = [(name, info.type_name, info.shape)]
            continue
        (rows, columns), module = info.shape, name.removesuffix("weight")
        made[name] = [
            (f"{module}weight_packed", "I32", (rows, columns * bits // 32)),
            (f"{module}weight_scale", "F16", (rows, columns // GROUP)),
            (f"{module}weight_shape", "I64", (2,)),
        ]
    offsets, end = {}, 0
    for one in sorted((one for each in made.values() for one in each), key=_narrow_last):
        offsets[one[0]], end = end, end + _size_bytes(one)
    return {
        source_name: [FolderTensor(*one, offsets[one[0]], _size_bytes(one)) for one in each]
        for source_name, each in made.items()
    }


def _narrow_last(one: tuple[str, str, tuple[int, ...]]) -> int:
    return -ITEM_BYTES[one[1]]


def _size_bytes(one: tuple[str, str, tuple[int, ...]]) -> int:
    return ITEM_BYTES[one[1]] * math.prod(one[2])


def _write(
    file: PartialFile,
    start: int,
    encoded: Iterator[Affine],
    size: tuple[int, ...],
    tensors: Sequence[FolderTensor],
) -> None:
    """Write the tensors of a quantized matrix of the shape `size`."""
    packed, scale, shape = (start + tensor.offset for tensor in tensors)
    for matrix in encoded:
        file.write(packed, matrix.q)
        file.write(scale, np.ascontiguousarray(matrix.scale))
        packed, scale = packed + matrix.q.nbytes, scale + matrix.scale.nbytes
    file.write(shape, np.array(size, "<i8"))


def _encoded(
    source: FolderSource, name: str, bits: Bits, importance: Floats | None, pool: _native.ThreadPool
) -> Iterator[Affine]:
    """Yield the integers of some rows at a time. GGML's types with one scale per 32 columns have
    the integers and the scales that the format has."""
    own = None if importance is None else importance[0]
    for rows in pieces(source.weights.matrix(name)):
        try:
            raw = encode(_TYPES[bits], rows, own, pool=pool)
        except ValueError as error:
            raise ModelError(f"{source.path}: {name}: {error}") from None
        integers = TYPES[_TYPES[bits]].convert(raw.reshape(-1), rows.shape)
        assert isinstance(integers, Affine)
        yield integers


def _digest(source: FolderSource, importance: Mapping[str, Floats]) -> str:
    """Return a digest of what decides the bytes of the weights beside their header."""
    digest = hashlib.sha256(stamp(source.path).encode())
    for name, values in sorted(importance.items()):
        digest.update(name.encode() + values.tobytes())
    return digest.hexdigest()


def _header(tensors: Sequence[FolderTensor], digest: str) -> bytes:
    """Return the header of the file. `digest`: tells files with other numbers apart."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", "penstock_source": digest}}
    for one in tensors:
        entries[one.name] = {
            "dtype": one.type_name,
            "shape": one.shape,
            "data_offsets": (one.offset, one.offset + one.size_bytes),
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _copy_other_files(source: FolderSource, folder: Path, plan: FolderPlan) -> None:
    for file in source.path.iterdir():
        left_out = file.name.endswith(_WEIGHT_FILES) or file.name.endswith(_INDEX_ENDING)
        if file.is_file() and not left_out and file.name != "config.json":
            shutil.copyfile(file, folder / file.name)
    config = read_json(source.path / "config.json", dict[str, Any], _MAX_CONFIG_BYTES)
    config["quantization_config"] = quantization_config(source, plan)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
