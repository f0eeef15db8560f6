"""Writes a quantized model as a Hugging Face folder: compressed-tensors, format pack-quantized.

Matrices of layers become integers of 4 or 8 bits, with a float16 scale for each 32 columns.
Embedding, head, norms and biases are copied, and so are the other files of the folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from penstock import _native
from penstock.base.errors import ModelError
from penstock.kernels.weights import Affine
from penstock.models.decoder.tensor_shapes import quantizable_names
from penstock.models.families import registry
from penstock.models.loader.folder_tensors import folder_names
from penstock.quant.checkpoint import TensorInfo
from penstock.quant.dequantize import dequantize
from penstock.quant.encode.encoder import encode
from penstock.quant.gguf.ggml_types import TYPES
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.quantization_config import read_scheme
from penstock.quant.safetensors.safetensors_file import ITEM_BYTES, SINGLE_NAME, SafetensorsFolder
from penstock.quant.weight_slices import row_range
from penstock.quantizing.gguf_output import Progress
from penstock.quantizing.partial_file import (
    PartialFile,
    disk_errors,
    refuse_to_overwrite,
    stamp,
)

Bits = Literal[4, 8]

FOLDER_TYPES: Final[Mapping[str, Bits]] = {"int4": 4, "int8": 8}
"""The types of a folder: name -> bits of a weight."""

GROUP: Final = 32
_TYPES: Final[dict[Bits, str]] = {4: "Q4_0", 8: "Q8_0"}
_PIECE_NUMBERS: Final = 1 << 23
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


class FolderSource:
    """A folder with float weights, of a decoder family."""

    def __init__(self, folder: Path) -> None:
        """Open the folder. Raises ModelError if it is invalid, quantized already, multimodal, or a
        mixture of experts."""
        self.path = folder
        if read_scheme(folder / "config.json") is not None:
            raise ModelError(f"{folder}: is quantized already; its floats are needed")
        if registry.multimodal_architecture_of_folder(folder) is not None:
            raise ModelError(f"{folder}: multimodal models are not written as folders")
        spec = registry.spec_of_folder(folder)
        if any(layer.experts is not None for layer in spec.layers):
            raise ModelError(
                f"{folder}: transformers reads no packed experts; name a .gguf output instead"
            )
        self.weights = SafetensorsFolder(folder)
        names = folder_names(spec, self.weights, None)
        tensors = self.weights.tensors
        self.matrices = [
            name
            for name in dict.fromkeys(quantizable_names(names, spec))
            if name in tensors and tensors[name].shape[-1] % GROUP == 0
        ]
        self.linears_left = [
            name.removesuffix(".weight")
            for name, info in tensors.items()
            if len(info.shape) == 2 and name not in self.matrices
            if not name.startswith(names.embedding)
        ]
        if spec.tied_head and names.head not in self.linears_left:
            self.linears_left.append(names.head)


def write_folder(
    path: Path,
    source: FolderSource,
    bits: Bits,
    pool: _native.ThreadPool,
    progress: Progress,
) -> int:
    """Write the folder `path`, continuing an interrupted run with the same arguments. Return the
    bytes of its weights. Raises ModelError naming the tensor that cannot be quantized, or the file
    that cannot be written."""
    refuse_to_overwrite(path)
    partial = path.with_name(f"{path.name}.partial")
    planned = _planned(source, bits)
    header = _header([one for tensors in planned.values() for one in tensors])
    size = len(header) + sum(one.size_bytes for tensors in planned.values() for one in tensors)
    with disk_errors(partial):
        partial.mkdir(exist_ok=True)
    weights = partial / SINGLE_NAME
    if not _is_complete(weights, header):
        digest = hashlib.sha256(header + stamp(source.path).encode()).hexdigest()
        with PartialFile(weights, size, digest) as file:
            file.write(0, header)
            done = len(header)
            first = file.finished
            for number, (name, tensors) in enumerate(planned.items()):
                done += sum(one.size_bytes for one in tensors)
                if number < first:
                    continue
                _write(file, len(header), source, name, tensors, bits, pool)
                file.finish_piece()
                progress(done, size)
            file.publish()
    with disk_errors(path):
        _copy_other_files(source, partial, bits)
        os.rename(partial, path)
    return size


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


def _planned(source: FolderSource, bits: Bits) -> dict[str, list[FolderTensor]]:
    """Return the tensors to be written, by the names of those from which they are made. Tensors
    of wide types come first, so that all are aligned."""
    made: dict[str, list[tuple[str, str, tuple[int, ...]]]] = {}
    for name, info in source.weights.tensors.items():
        if name not in source.matrices:
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
    source: FolderSource,
    name: str,
    tensors: Sequence[FolderTensor],
    bits: Bits,
    pool: _native.ThreadPool,
) -> None:
    """Write the tensors that are made from the tensor `name`."""
    if len(tensors) == 1:
        file.write(start + tensors[0].offset, source.weights.raw(name))
        return
    packed, scale, shape = (start + tensor.offset for tensor in tensors)
    info = source.weights.tensors[name]
    for matrix in _encoded(source, info, bits, pool):
        file.write(packed, matrix.q)
        file.write(scale, np.ascontiguousarray(matrix.scale))
        packed, scale = packed + matrix.q.nbytes, scale + matrix.scale.nbytes
    file.write(shape, np.array(info.shape, "<i8"))


def _encoded(
    source: FolderSource, info: TensorInfo, bits: Bits, pool: _native.ThreadPool
) -> Iterator[Affine]:
    """Yield the integers of some rows at a time. GGML's types with one scale per 32 columns have
    the integers and the scales that the format has."""
    matrix = source.weights.matrix(info.name)
    rows, columns = matrix.shape
    step = max(_PIECE_NUMBERS // columns, 1)
    for first in range(0, rows, step):
        part = row_range(matrix, slice(first, min(first + step, rows)))
        try:
            raw = encode(_TYPES[bits], dequantize(part), pool=pool)
        except ValueError as error:
            raise ModelError(f"{source.path}: {info.name}: {error}") from None
        integers = TYPES[_TYPES[bits]].convert(raw.reshape(-1), part.shape)
        assert isinstance(integers, Affine)
        yield integers


def _header(tensors: Sequence[FolderTensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for one in tensors:
        entries[one.name] = {
            "dtype": one.type_name,
            "shape": one.shape,
            "data_offsets": (one.offset, one.offset + one.size_bytes),
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _copy_other_files(source: FolderSource, folder: Path, bits: Bits) -> None:
    for file in source.path.iterdir():
        left_out = file.name.endswith(_WEIGHT_FILES) or file.name.endswith(_INDEX_ENDING)
        if file.is_file() and not left_out and file.name != "config.json":
            shutil.copyfile(file, folder / file.name)
    config = read_json(source.path / "config.json", dict[str, Any], _MAX_CONFIG_BYTES)
    config["quantization_config"] = _quantization_config(source.linears_left, bits)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _quantization_config(ignored: Sequence[str], bits: Bits) -> Mapping[str, Any]:
    weights = {
        "num_bits": bits, "type": "int", "symmetric": True, "strategy": "group",
        "group_size": GROUP, "dynamic": False,
    }  # fmt: skip
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group | {"format": "pack-quantized"}},
        "ignore": list(ignored),
    }
