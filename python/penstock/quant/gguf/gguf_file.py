"""Reads little-endian GGUF files of versions 2 and 3: typed metadata, and tensors converted on
demand.

Arrays of strings (a vocabulary may have 150,000 strings) are skipped when a file is opened, and
decoded on demand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Matrix
from penstock.quant.affine import unify_affine
from penstock.quant.checkpoint import Device, TensorInfo
from penstock.quant.dequantize import dequantize
from penstock.quant.gguf import held_size
from penstock.quant.gguf.ggml_types import SUPPORTED, TYPES
from penstock.quant.gguf.gguf_header import GgufHeader, StringArray, Value
from penstock.quant.gguf.split_names import split_file_names
from penstock.quant.mapped_file import MappedFile
from penstock.quant.weight_slices import scaled

_ANY_FACTOR = 2.0


def read_head(path: Path) -> Mapping[str, Value]:
    """Read only the metadata before the keys `tokenizer.*`, which describe the model. Raises
    ModelError if the file is invalid."""
    return GgufHeader(MappedFile(path), until="tokenizer.").metadata


class GgufFile:
    """An opened GGUF file or split set, as a Checkpoint. `metadata`: key -> value."""

    def __init__(self, path: Path) -> None:
        """Read the headers of the file, or of all files of the split set whose first file is
        `path`. Raises ModelError naming the file and the key or tensor at fault."""
        self.path = path
        opened = _open_set(path)
        self.metadata: Mapping[str, Value] = opened[0][1].metadata
        self._pairs = opened[0][1].pairs
        self._first = opened[0][0]
        self._types: dict[str, int] = {}
        self._files: dict[str, MappedFile] = {}
        tensors: dict[str, TensorInfo] = {}
        for file, header in opened:
            if twice := tensors.keys() & header.tensors.keys():
                raise ModelError(f"{file.path}: {min(twice)}: is also in another file of the set")
            tensors |= header.tensors
            self._types |= header.types
            self._files |= dict.fromkeys(header.tensors, file)
        count = len(tensors)
        self.tensors: Mapping[str, TensorInfo] = tensors
        self._factors = self._take_factors(tensors)
        expected = self.integer("split.tensors.count", count)
        if expected != count:
            raise ModelError(f"{path}: split.tensors.count: {expected}, but there are {count}")

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer in the metadata, or `default` if the key is absent. Raises ModelError
        for another type, or if the key is absent and `default` is None."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.path}: {key}: expected an integer")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Return a finite number in the metadata, or `default` if the key is absent. Raises
        ModelError as `integer` does."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelError(f"{self.path}: {key}: expected a number")
        if not np.isfinite(value):
            raise ModelError(f"{self.path}: {key}: {value} is not finite")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string in the metadata, or `default` if the key is absent. Raises ModelError as
        `integer` does."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise ModelError(f"{self.path}: {key}: expected a string")
        return value

    def boolean(self, key: str) -> bool | None:
        """Return a boolean in the metadata, or None if the key is absent. Raises ModelError for
        another type."""
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, bool):
            raise ModelError(f"{self.path}: {key}: expected true or false")
        return value

    def strings(self, key: str) -> list[str]:
        """Return an array of strings, empty if the key is absent. Raises ModelError for another
        type."""
        value = self.metadata.get(key)
        if value is None:
            return []
        if not isinstance(value, StringArray):
            raise ModelError(f"{self.path}: {key}: expected an array of strings")
        return value.decode()

    def numbers(self, key: str) -> npt.NDArray[Any]:
        """Return an array of numbers, empty if the key is absent. Raises ModelError for another
        type."""
        value = self.metadata.get(key)
        if value is None:
            return np.empty(0)
        if not isinstance(value, np.ndarray):
            raise ModelError(f"{self.path}: {key}: expected an array of numbers")
        return value

    def pairs(self) -> dict[str, bytes]:
        """Return the metadata as the file has them: key -> the bytes of its key and value."""
        return {key: self._first.map[start:end] for key, (start, end) in self._pairs.items()}

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor, as a view of the mapped file. Raises ModelError if the
        tensor is missing, has an unsupported type, or is scaled by a second tensor."""
        info = self._supported(name)
        if name in self._factors:
            raise ModelError(f"{self.path}: {name}: cannot be copied without its factor")
        return self._raw(info)

    def matrix(self, name: str) -> Matrix:
        """See Checkpoint. Raises ModelError naming the type if it is not supported."""
        info = self._supported(name)
        if len(info.shape) != 2:
            raise ModelError(f"{self.path}: {name}: expected a matrix, the shape is {info.shape}")
        matrix = self._converted(info, self._raw(info), (info.shape[0], info.shape[1]))
        return (
            matrix if name not in self._factors else scaled(matrix, self._factor_list(name, 1)[0])
        )

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """See Checkpoint."""
        info = self._supported(name)
        if len(info.shape) != 3:
            raise ModelError(f"{self.path}: {name}: expected matrices, the shape is {info.shape}")
        count, rows, columns = info.shape
        raw = self._raw(info).reshape(count, -1)
        each = [self._converted(info, one, (rows, columns)) for one in raw]
        if name in self._factors:
            factors = self._factor_list(name, count)
            each = [scaled(one, factor) for one, factor in zip(each, factors, strict=True)]
        return unify_affine(each, f"{self.path}: {name}")

    def layout_sample(self, name: str) -> Matrix:
        """See Checkpoint."""
        sample = TYPES[self._supported(name).type_name].layout_sample()
        return scaled(sample, _ANY_FACTOR) if name in self._factors else sample

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """See Checkpoint."""
        info = self._supported(name)
        if len(info.shape) != 1:
            raise ModelError(f"{self.path}: {name}: expected a vector, the shape is {info.shape}")
        row = self._converted(info, self._raw(info), (1, info.shape[0]))
        if not isinstance(row, Dense):
            raise ModelError(f"{self.path}: {name}: a vector of type {info.type_name}")
        return np.array(dequantize(row)[0])

    def flattened(self, name: str) -> Dense:
        """See Checkpoint."""
        info = self._supported(name)
        shape = info.shape[0] if info.shape else 1, math.prod(info.shape[1:])
        matrix = self._converted(info, self._raw(info), shape)
        if not isinstance(matrix, Dense):
            raise ModelError(f"{self.path}: {name}: has type {info.type_name}, expected floats")
        return matrix

    @property
    def extra_bytes(self) -> int:
        """See SizedCheckpoint."""
        return held_size.extra_bytes(self.tensors)

    def size_note(self, device: Device) -> str:
        """See SizedCheckpoint."""
        return held_size.size_note(self.tensors, device)

    def _take_factors(self, tensors: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Return the factors `<module>.scale` of NVFP4 matrices, by the names of the matrices, and
        remove them from `tensors`. Also removes the scales of activations, which are not used."""
        factors = {}
        for name in [name for name, info in tensors.items() if info.type_name == "NVFP4"]:
            module = name.removesuffix("weight")
            tensors.pop(f"{module}input_scale", None)
            if f"{module}scale" in tensors:
                factors[name] = tensors.pop(f"{module}scale")
        return factors

    def _factor_list(self, name: str, count: int) -> list[float]:
        """Return the factors of the `count` matrices of a tensor. Raises ModelError for another
        number of factors, and for one that is not finite."""
        info = self._factors[name]
        if info.type_name != "F32" or math.prod(info.shape) not in (1, count):
            raise ModelError(f"{self.path}: {info.name}: expected {count} factors of type F32")
        factors = self._raw(info).view("<f4")
        if not np.isfinite(factors).all():
            raise ModelError(f"{self.path}: {info.name}: not all numbers are finite")
        return [float(factor) for factor in np.broadcast_to(factors, count)]

    def _converted(
        self, info: TensorInfo, raw: npt.NDArray[np.uint8], shape: tuple[int, int]
    ) -> Matrix:
        try:
            return TYPES[info.type_name].convert(raw, shape)
        except ValueError as error:
            raise ModelError(f"{self.path}: {info.name}: {error}") from None

    def _raw(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        return self._files[info.name].bytes(info.offset, info.size_bytes)

    def _value(self, key: str, default: Value | None) -> Value:
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelError(f"{self.path}: {key} is missing")
        return value

    def _supported(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path}: tensor {name} is missing")
        if self._types[name] not in SUPPORTED:
            known = ", ".join(kind.name for kind in SUPPORTED.values())
            raise ModelError(
                f"{self.path}: tensor {name} has type {info.type_name}, supported are {known}"
            )
        return info


def _open_set(path: Path) -> list[tuple[MappedFile, GgufHeader]]:
    """Open a GGUF file and, if it is the first file of a split set, the other files of the set. The
    first file has the metadata; each file may have tensors. Raises ModelError if a file is missing
    or belongs to another set."""
    file = MappedFile(path)
    header = GgufHeader(file)
    opened = [(file, header)]
    count = header.metadata.get("split.count", 1)
    if count == 1:
        return opened
    names = split_file_names(path.name)
    if header.metadata.get("split.no") != 0 or len(names) != count:
        raise ModelError(
            f"{path}: split.count: the file is one of a set of {count}; name the first, which ends"
            f" in -00001-of-{count:05}.gguf"
        )
    for number, name in enumerate(names[1:], 1):
        other = path.with_name(name)
        file = MappedFile(other)
        header = GgufHeader(file)
        place = header.metadata.get("split.no"), header.metadata.get("split.count")
        if place != (number, count):
            raise ModelError(f"{other}: split.no: not file {number + 1} of a set of {count}")
        opened.append((file, header))
    return opened
