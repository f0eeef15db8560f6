"""Reads the parameters of a kernel from its cubin, which lists them in the section
.nv.info.<entry>."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_PARAMETER = 0x17  # EIATTR_KPARAM_INFO
_SIZED = 0x04  # format of an attribute with a value, whose size precedes it in two bytes
_SECTION = struct.Struct("<IIQQQQIIQQ")


def parameters(cubin: bytes, entry: str) -> list[tuple[int, int]]:
    """Return (offset, size) in bytes of each parameter of the kernel `entry`, in order. Raises
    ValueError if `cubin` is not a 64-bit ELF file or lacks the kernel."""
    info = _sections(cubin).get(f".nv.info.{entry}")
    if info is None:
        raise ValueError(f"the cubin has no {entry}")
    found = {}
    for attribute, value in _attributes(info):
        if attribute == _PARAMETER:
            _, ordinal, offset, flags = struct.unpack("<IHHI", value)
            found[ordinal] = (offset, flags >> 18)
    return [found[ordinal] for ordinal in sorted(found)]


def _sections(image: bytes) -> dict[str, bytes]:
    if image[:5] != b"\x7fELF\x02":
        raise ValueError("not an ELF file of 64 bits")
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [_SECTION.unpack_from(image, table + index * size) for index in range(count)]
    text = _content(image, headers[names])
    return {
        text[header[0] : text.index(b"\0", header[0])].decode(): _content(image, header)
        for header in headers
    }


def _content(image: bytes, header: tuple[int, ...]) -> bytes:
    no_bits = 8
    return b"" if header[1] == no_bits else image[header[4] : header[4] + header[5]]


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        value = info[at : at + size] if form == _SIZED else b""
        at += len(value)
        yield attribute, value
