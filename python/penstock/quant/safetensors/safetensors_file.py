"""Reads safetensors files, single or sharded.

The size of the header and every dtype, shape and offset are checked before an array is created.
Overlapping tensors and shards outside the folder are refused.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, FloatName, Matrix
from penstock.quant.checkpoint import TensorInfo
from penstock.quant.dequantize import dequantize
from penstock.quant.json_file import decode_json, read_json
from penstock.quant.mapped_file import MappedFile

MAX_HEADER_BYTES = 100 << 20
MAX_TENSORS = 1 << 18
MAX_DIMENSIONS = 8
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

FLOAT8 = "F8_E4M3"
FLOAT8_E5M2 = "F8_E5M2"

# Bytes per element. Other types are refused, because their size could not be checked.
ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    FLOAT8: 1,
    FLOAT8_E5M2: 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
FLOATS: dict[str, tuple[FloatName, str]] = {
    "F32": ("f32", "<f4"),
    "F16": ("f16", "<f2"),
    "BF16": ("bf16", "<u2"),
}

# 8-bit floats are read as their codes.
INTEGERS = {
    "F8_E8M0": "<u1",
    FLOAT8: "<u1",
    FLOAT8_E5M2: "<u1",
    "U8": "<u1",
    "I8": "<i1",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "I64": "<i8",
}


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class SafetensorsFile:
    """A single safetensors file as a Checkpoint."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises ModelError naming the file and the tensor at fault."""
        self.path = path
        self.tensors: Mapping[str, TensorInfo]
        self.tensors, size = read_header(path)
        self._file = MappedFile(path)
        if self._file.size != size:
            raise ModelError(f"{path}: changed while it was opened")

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint."""
        info = self._info(name)
        if len(info.shape) != 2:
            raise ModelError(f"{self.path}: {name}: expected a matrix, the shape is {info.shape}")
        return self._dense(info, (info.shape[0], info.shape[1]))

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint."""
        info = self._info(name)
        if len(info.shape) != 3:
            raise ModelError(f"{self.path}: {name}: expected matrices, the shape is {info.shape}")
        count, rows, columns = info.shape
        all_rows = self._dense(info, (count * rows, columns))
        return tuple(
            Dense(all_rows.data[first : first + rows], all_rows.dtype)
            for first in range(0, count * rows, rows)
        )

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint."""
        float_name, dtype = self._float(self._info(name))
        return Dense(np.zeros((1, 1), dtype), float_name)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        info = self._info(name)
        if len(info.shape) != 1:
            raise ModelError(f"{self.path}: {name}: expected a vector, the shape is {info.shape}")
        return np.array(dequantize(self._dense(info, (1, info.shape[0])))[0])

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        info = self._info(name)
        rows = info.shape[0] if info.shape else 1
        return self._dense(info, (rows, math.prod(info.shape[1:])))

    def codes(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the codes of a matrix or stack of 8-bit floats as a read-only view of the mapped
        file."""
        info = self._info(name)
        if info.type_name not in (FLOAT8, FLOAT8_E5M2) or len(info.shape) not in (2, 3):
            raise ModelError(
                f"{self.path}: {name}: expected matrices of 8-bit floats, found {info.type_name} "
                f"{info.shape}"
            )
        return self._file.bytes(info.offset, info.size_bytes).reshape(info.shape)

    def integers(self, name: str) -> npt.NDArray[np.generic]:
        """Return an integer tensor of any shape as a read-only view of the mapped file."""
        info = self._info(name)
        if info.type_name not in INTEGERS:
            raise ModelError(
                f"{self.path}: tensor {name} has type {info.type_name}, expected integers"
            )
        raw = self._file.bytes(info.offset, info.size_bytes)
        return raw.view(INTEGERS[info.type_name]).reshape(info.shape)

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """Return a float tensor of any shape as a float32 copy."""
        info = self._info(name)
        return np.array(dequantize(self._dense(info, (1, math.prod(info.shape))))).reshape(
            info.shape
        )

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor, as a read-only view of the mapped file."""
        info = self._info(name)
        return self._file.bytes(info.offset, info.size_bytes)

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path}: tensor {name} is missing")
        return info

    def _float(self, info: TensorInfo) -> tuple[FloatName, str]:
        if info.type_name not in FLOATS:
            known = ", ".join(FLOATS)
            raise ModelError(
                f"{self.path}: tensor {info.name} has type {info.type_name}, supported are {known}"
            )
        return FLOATS[info.type_name]

    def _dense(self, info: TensorInfo, shape: tuple[int, int]) -> Dense:
        name, dtype = self._float(info)
        raw = self._file.bytes(info.offset, info.size_bytes)
        return Dense(raw.view(dtype).reshape(shape), name)


class SafetensorsFolder:
    """The shards in a folder's index, or its single file, as one Checkpoint."""

    def __init__(self, folder: Path) -> None:
        """Open every shard. Raises ModelError if a shard is outside the folder, or if index and
        shards do not have the same tensors."""
        self.path = folder
        self._files: dict[str, SafetensorsFile] = {}
        self._names: dict[str, str] = {}
        self.tensors: Mapping[str, TensorInfo] = {}
        if (folder / INDEX_NAME).exists():
            self._open_shards(folder / INDEX_NAME)
        elif (folder / SINGLE_NAME).exists():
            file = SafetensorsFile(folder / SINGLE_NAME)
            self.tensors = file.tensors
            self._files = dict.fromkeys(file.tensors, file)
        else:
            raise ModelError(f"{folder}: neither {SINGLE_NAME} nor {INDEX_NAME} exists")

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint."""
        return self._file(name).matrix(self._stored(name))

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint."""
        return self._file(name).stack(self._stored(name))

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint."""
        return self._file(name).layout_sample(self._stored(name))

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        return self._file(name).vector(self._stored(name))

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        return self._file(name).flattened(self._stored(name))

    def codes(self, name: str) -> npt.NDArray[np.uint8]:
        """See SafetensorsFile."""
        return self._file(name).codes(self._stored(name))

    def integers(self, name: str) -> npt.NDArray[np.generic]:
        """See SafetensorsFile."""
        return self._file(name).integers(self._stored(name))

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """See SafetensorsFile."""
        return self._file(name).floats(self._stored(name))

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """See SafetensorsFile."""
        return self._file(name).raw(self._stored(name))

    def leave_out(self, endings: tuple[str, ...]) -> None:
        """Remove the tensors whose names have one of these endings from `tensors`."""
        kept = {name: info for name, info in self.tensors.items() if not name.endswith(endings)}
        self.tensors = kept

    def rename(self, names: Mapping[str, str]) -> None:
        """Present tensors under other names. `names`: name in the file -> new name. Raises
        ModelError for a name that another tensor has."""
        renamed: dict[str, TensorInfo] = {}
        for name, info in self.tensors.items():
            shown = names.get(name, name)
            if shown in renamed or (shown != name and shown in self.tensors):
                raise ModelError(f"{self.path}: has both {shown} and {name}")
            renamed[shown] = replace(info, name=shown)
            if shown != name:
                self._names[shown] = self._stored(name)
                self._files[shown] = self._files[name]
        self.tensors = renamed

    def _stored(self, name: str) -> str:
        """Return the name in the file of a tensor."""
        return self._names.get(name, name)

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            raise ModelError(f"{self.path}: tensor {name} is missing")
        return self._files[name]

    def _open_shards(self, index: Path) -> None:
        weight_map = read_json(index, _Index, MAX_HEADER_BYTES).weight_map
        shards: dict[str, SafetensorsFile] = {}
        for shard in sorted(set(weight_map.values())):
            _check_shard_name(index, shard)
            shards[shard] = SafetensorsFile(index.parent / shard)
        tensors = {}
        for name, shard in weight_map.items():
            if name not in shards[shard].tensors:
                raise ModelError(f"{index}: tensor {name} is not in {shard}")
            tensors[name] = shards[shard].tensors[name]
            self._files[name] = shards[shard]
        for shard, file in shards.items():
            for name in file.tensors:
                if name not in tensors:
                    raise ModelError(f"{index}: does not name tensor {name} of {shard}")
        self.tensors = tensors


def shard_names(index: Path) -> list[str]:
    """Return the names of the shards in an index. Raises ModelError for a shard outside the index's
    folder."""
    names = sorted(set(read_json(index, _Index, MAX_HEADER_BYTES).weight_map.values()))
    for name in names:
        _check_shard_name(index, name)
    return names


def _check_shard_name(index: Path, shard: str) -> None:
    plain = PurePosixPath(shard).name == shard and "\\" not in shard and "\0" not in shard
    if not plain or not shard.endswith(".safetensors"):
        raise ModelError(f"{index}: shard {shard!r} must be the name of a file in the same folder")


def read_header(path: Path) -> tuple[dict[str, TensorInfo], int]:
    """Read the header of a file without mapping the file. Return its tensors, whose data are
    checked to be inside the file, and the file's size in bytes. Raises ModelError naming the file
    and the tensor at fault."""
    try:
        with path.open("rb") as file:
            file_size = os.fstat(file.fileno()).st_size
            if file_size < 8:
                raise ModelError(f"{path}: too short for a safetensors file")
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(MAX_HEADER_BYTES, file_size - 8):
                raise ModelError(f"{path}: header of {length} bytes in a file of {file_size}")
            header = file.read(length)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    entries = decode_json(header, dict[str, msgspec.Raw], f"{path}: header")
    entries.pop("__metadata__", None)
    if len(entries) > MAX_TENSORS:
        raise ModelError(f"{path}: {len(entries)} tensors, at most {MAX_TENSORS} are accepted")
    tensors = {}
    data_offset = 8 + length
    for name, raw in entries.items():
        entry = decode_json(bytes(raw), _Entry, f"{path}: {name}")
        _check_entry(f"{path}: {name}", entry, file_size - data_offset)
        begin, end = entry.data_offsets
        shape = tuple(entry.shape)
        tensors[name] = TensorInfo(name, shape, entry.dtype, data_offset + begin, end - begin)
    _refuse_overlaps(path, tensors)
    return tensors, file_size


def _check_entry(where: str, entry: _Entry, data_bytes: int) -> None:
    if entry.dtype not in ITEM_BYTES:
        raise ModelError(f"{where}: unknown type {entry.dtype!r}")
    if len(entry.shape) > MAX_DIMENSIONS or any(size < 0 for size in entry.shape):
        raise ModelError(f"{where}: invalid shape")
    size = ITEM_BYTES[entry.dtype]
    for dimension in entry.shape:
        size *= dimension
    begin, end = entry.data_offsets
    if not 0 <= begin <= end <= data_bytes:
        hint = ", which is truncated; download it again" if 0 <= begin <= end else ""
        raise ModelError(f"{where}: its data [{begin}, {end}) are not inside the file{hint}")
    if end - begin != size:
        raise ModelError(f"{where}: has {end - begin} bytes, its shape and type need {size}")


def _refuse_overlaps(path: Path, tensors: dict[str, TensorInfo]) -> None:
    end, before = 0, ""
    for info in sorted(tensors.values(), key=lambda info: (info.offset, info.size_bytes)):
        if info.offset < end:
            raise ModelError(f"{path}: {info.name}: its data overlap those of {before}")
        end, before = info.offset + info.size_bytes, info.name
