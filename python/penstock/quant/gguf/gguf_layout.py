"""Lays out a GGUF file that is to be written: its header, and the place of each tensor's data."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.quant.gguf.ggml_types import SUPPORTED, TYPES

ALIGNMENT: Final = 32
_VERSION: Final = 3
_NUMBERS: Final = {name: number for number, name in ((n, t.name) for n, t in SUPPORTED.items())}
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_ARRAY_TYPES: Final = {
    "i": ("<i4", _INT32),
    "u": ("<u4", _UINT32),
    "f": ("<f4", _FLOAT32),
    "b": ("?", _BOOL),
}


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to be written. `shape`: in C order, as in `TensorInfo`; its rows must be whole
    blocks of the type."""

    name: str
    shape: tuple[int, ...]
    type_name: str

    @property
    def size_bytes(self) -> int:
        """The bytes of the data."""
        kind = TYPES[self.type_name]
        assert self.shape[-1] % kind.block == 0
        return int(np.prod(self.shape, dtype=np.int64)) // kind.block * kind.size_bytes


class GgufLayout:
    """The header of a GGUF file as bytes, and the offsets of its tensors.

    - `header`: everything before the data.
    - `offsets`: for each tensor, the offset of its data in the file.
    - `size_bytes`: the size of the whole file.
    """

    def __init__(self, pairs: Mapping[str, bytes], tensors: Sequence[NewTensor]) -> None:
        """`pairs`: metadata key -> its encoded pair, as from `pair` or `GgufFile.pairs`."""
        entries, places, end = [], [], 0
        for tensor in tensors:
            entries.append(_entry(tensor, end))
            places.append(end)
            end = _aligned(end + tensor.size_bytes)
        head = struct.pack("<4sIQQ", b"GGUF", _VERSION, len(tensors), len(pairs))
        head += b"".join(pairs.values()) + b"".join(entries)
        self.header = head + bytes(_aligned(len(head)) - len(head))
        self.offsets = [len(self.header) + place for place in places]
        self.size_bytes = len(self.header) + end


def pair(key: str, value: str | bool | int | float | Sequence[str] | npt.NDArray[Any]) -> bytes:
    """Encode a metadata key and its value: integers as uint32, reals as float32, arrays of numbers
    as int32, uint32, float32 or booleans."""
    return _text(key) + _value(value)


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, np.ndarray):
        dtype, number = _ARRAY_TYPES[value.dtype.kind]
        return struct.pack("<IIQ", _ARRAY, number, len(value)) + value.astype(dtype).tobytes()
    texts = list(value)
    return struct.pack("<IIQ", _ARRAY, _STRING, len(texts)) + b"".join(map(_text, texts))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _entry(tensor: NewTensor, offset: int) -> bytes:
    count = len(tensor.shape)
    sizes = struct.pack(f"<I{count}Q", count, *reversed(tensor.shape))
    return _text(tensor.name) + sizes + struct.pack("<IQ", _NUMBERS[tensor.type_name], offset)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
