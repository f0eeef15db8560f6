"""Parses the header of a GGUF file, metadata and tensor entries, without trusting its content.

Every count, length, offset and nesting depth is checked against the file and against a limit before
memory is allocated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.quant.checkpoint import TensorInfo
from penstock.quant.gguf.ggml_types import SUPPORTED, type_name
from penstock.quant.mapped_file import MappedFile

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_KEY_BYTES = 1 << 16
MAX_STRING_BYTES = 1 << 24
MAX_ARRAY_STRINGS = 1 << 22
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
CUT_SHORT = "its data reach past the end of the file, which is truncated; download it again"

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class StringArray:
    """An array of `count` strings in the file's bytes [start, end), which are decoded on demand."""

    file: MappedFile
    start: int
    end: int
    count: int

    def decode(self) -> list[str]:
        """Decode all strings. Invalid UTF-8 becomes U+FFFD, as in llama.cpp's tools."""
        pieces = self._pieces()
        try:  # decoding all at once is three times as fast
            strings = b"\0".join(pieces).decode("utf-8").split("\0")
        except UnicodeDecodeError:
            strings = []
        if len(strings) == self.count:
            return strings
        return [piece.decode("utf-8", "replace") for piece in pieces]

    def _pieces(self) -> list[bytes]:
        data, offset, unpack = self.file.map[self.start : self.end], 0, _U64.unpack_from
        pieces = []
        for _ in range(self.count):  # the header parser has checked every length
            first = offset + 8
            offset = first + unpack(data, offset)[0]
            pieces.append(data[first:offset])
        return pieces


Value: TypeAlias = "int | float | bool | str | StringArray | npt.NDArray[Any]"


class HeaderCutShort(ModelError):
    """The file ends before its header does."""


class GgufHeader:
    """The parsed header of a GGUF file. `data_offset`: the byte at which the tensor data start.
    `pairs`: metadata key -> the first byte of its pair of key and value, and the byte after it."""

    def __init__(self, file: MappedFile, until: str | None = None) -> None:
        """Parse the header of `file`. `until`: stop at the first key that starts with this prefix;
        only the metadata before that key are then set. Raises ModelError naming the file and the
        key or tensor at fault, HeaderCutShort if the file has not all of the header."""
        self._file = file
        self._offset = 0
        self.metadata: dict[str, Value] = {}
        self.pairs: dict[str, tuple[int, int]] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self.types: dict[str, int] = {}
        num_tensors, num_keys = self._preamble()
        for _ in range(num_keys):
            key = self._pair()
            if until is not None and key.startswith(until):
                return
        entries = [self._tensor() for _ in range(num_tensors)]
        self.data_offset = self._aligned(self._offset)
        for name, shape, kind, offset in entries:
            self._place(name, shape, kind, offset)
        self._refuse_overlaps()

    def _fail(self, where: str, what: str) -> ModelError:
        return ModelError(f"{self._file.path}: {where}: {what}")

    def _cut(self, where: str, what: str) -> HeaderCutShort:
        return HeaderCutShort(f"{self._file.path}: {where}: {what}")

    def _u32(self, where: str) -> int:
        return self._unpack(_U32, where)

    def _u64(self, where: str) -> int:
        return self._unpack(_U64, where)

    def _unpack(self, kind: struct.Struct, where: str) -> int:
        if self._offset + kind.size > self._file.size:
            raise self._cut(where, "the file ends in the middle of it")
        value: int = kind.unpack_from(self._file.map, self._offset)[0]
        self._offset += kind.size
        return value

    def _string(self, where: str, limit: int) -> str:
        length = self._u64(where)
        if length > limit:
            raise self._fail(where, f"a string of {length} bytes, at most {limit} are accepted")
        if length > self._file.size - self._offset:
            raise self._cut(where, f"a string of {length} bytes reaches past the end of the file")
        start = self._offset
        self._offset += length
        return self._file.map[start : self._offset].decode("utf-8", "replace")

    def _preamble(self) -> tuple[int, int]:
        """Read magic, version and counts. Return (number of tensors, number of keys)."""
        if self._file.map[:4] != b"GGUF":
            raise self._fail("magic", "this is not a GGUF file")
        self._offset = 4
        version = self._u32("version")
        if version not in (2, 3):
            reason = "big-endian files are not" if version & 0xFFFF == 0 else "only 2 and 3 are"
            raise self._fail("version", f"{version}: {reason} supported")
        num_tensors, num_keys = self._u64("tensor count"), self._u64("key count")
        if num_tensors > MAX_TENSORS:
            raise self._fail("tensor count", f"{num_tensors}, at most {MAX_TENSORS} are accepted")
        if num_keys > MAX_KEYS:
            raise self._fail("key count", f"{num_keys}, at most {MAX_KEYS} are accepted")
        return num_tensors, num_keys

    def _pair(self) -> str:
        """Read one metadata key and its value. Return the key."""
        start = self._offset
        key = self._string(f"key {len(self.metadata)}", MAX_KEY_BYTES)
        if key in self.metadata:
            raise self._fail(key, "appears twice")
        kind = self._u32(key)
        if kind == _STRING:
            self.metadata[key] = self._string(key, MAX_STRING_BYTES)
        elif kind == _ARRAY:
            self.metadata[key] = self._array(key)
        elif kind in _SCALARS:
            self.metadata[key] = self._numbers(key, _SCALARS[kind], 1)[0].item()
        else:
            raise self._fail(key, f"unknown value type {kind}")
        self.pairs[key] = start, self._offset
        return key

    def _array(self, key: str) -> Value:
        kind, count = self._u32(key), self._u64(key)
        if kind == _STRING:
            return self._step_over_strings(key, count)
        if kind in _SCALARS:
            return self._numbers(key, _SCALARS[kind], count)
        what = "an array of arrays" if kind == _ARRAY else f"an array of unknown type {kind}"
        raise self._fail(key, f"{what} is not supported")

    def _numbers(self, key: str, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        size = count * dtype.itemsize
        if size > self._file.size - self._offset:
            raise self._cut(key, f"{count} values reach past the end of the file")
        values = np.frombuffer(self._file.map, dtype, count, self._offset)
        self._offset += size
        return values

    def _step_over_strings(self, key: str, count: int) -> StringArray:
        if count > MAX_ARRAY_STRINGS:
            raise self._fail(key, f"{count} strings, at most {MAX_ARRAY_STRINGS} are accepted")
        data, size, offset, unpack = self._file.map, self._file.size, self._offset, _U64.unpack_from
        try:
            for _ in range(count):
                offset += 8 + unpack(data, offset)[0]
        except (struct.error, OverflowError):  # an offset past the end, or past what C can count
            offset = size + 1
        if offset > size:
            raise self._cut(key, "its strings reach past the end of the file")
        strings = StringArray(self._file, self._offset, offset, count)
        self._offset = offset
        return strings

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string("tensor name", MAX_KEY_BYTES)
        num_dimensions = self._u32(name)
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self._fail(name, f"{num_dimensions} dimensions, 1 to {MAX_DIMENSIONS} are valid")
        dimensions = [self._u64(name) for _ in range(num_dimensions)]
        return name, tuple(reversed(dimensions)), self._u32(name), self._u64(name)

    def _aligned(self, offset: int) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        valid = isinstance(alignment, int) and 8 <= alignment <= MAX_ALIGNMENT
        if not valid or not isinstance(alignment, int) or alignment & (alignment - 1):
            raise self._fail(
                "general.alignment", f"{alignment} is not a power of two in 8..{MAX_ALIGNMENT}"
            )
        self._alignment = alignment
        return (offset + alignment - 1) // alignment * alignment

    def _place(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> None:
        """Add a tensor to `tensors` after checking that its data are inside the file."""
        if name in self.tensors:
            raise self._fail(name, "appears twice")
        if offset % self._alignment:
            raise self._fail(name, f"offset {offset} is not a multiple of {self._alignment}")
        count = 1
        for dimension in shape:
            count *= dimension
        if count == 0:
            raise self._fail(name, f"empty shape {shape}")
        size = self._size_bytes(name, shape[-1], count, kind)
        if self.data_offset + offset + size > self._file.size:
            raise self._fail(name, CUT_SHORT)
        start = self.data_offset + offset
        self.tensors[name] = TensorInfo(name, shape, type_name(kind), start, size)
        self.types[name] = kind

    def _size_bytes(self, name: str, row: int, count: int, kind: int) -> int:
        """Return the bytes of a tensor. For an unsupported type return 0; the tensor is refused
        when it is read."""
        known = SUPPORTED.get(kind)
        if known is None:
            return 0
        if row % known.block:
            raise self._fail(name, f"rows of {row} are not whole blocks of {known.name}")
        return count // known.block * known.size_bytes

    def _refuse_overlaps(self) -> None:
        end, before = 0, ""
        for info in sorted(self.tensors.values(), key=lambda info: info.offset):
            if info.offset < end:
                raise self._fail(info.name, f"its data overlap those of {before}")
            end, before = info.offset + info.size_bytes, info.name
