"""The memory of the weights of a GGUF file: types that no kernel reads at their size take more than
in the file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from penstock.quant.checkpoint import Device, TensorInfo
from penstock.quant.gguf.ggml_types import TYPES, GgmlType

Tensors = Mapping[str, TensorInfo]

_NOTED = 1.25
"""The ratio of memory to file from which a type is mentioned."""


def extra_bytes(tensors: Tensors) -> int:
    """Return the bytes that the matrices need on a CPU beyond the size of the file."""
    extra = 0.0
    for info, kind in _matrices(tensors):
        bits = kind.held_bits("cpu") - kind.file_bits
        if kind.name != "MXFP4":  # its scales are almost always exact in float16
            extra += max(bits, 0) * math.prod(info.shape) / 8
    return math.ceil(extra)


def size_note(tensors: Tensors, device: Device) -> str:
    """Return the part of the log line about memory that names the types held in more bits than in
    the file, or an empty string."""
    kinds = {kind.name: kind for _, kind in _matrices(tensors)}
    larger = [
        f"{name} takes {_bits(kind.held_bits(device))} bits per weight instead of "
        f"{_bits(kind.file_bits)}"
        for name, kind in sorted(kinds.items())
        if kind.held_bits(device) >= _NOTED * kind.file_bits
    ]
    return f"; no kernel reads these types at their size: {', '.join(larger)}" if larger else ""


def _bits(bits: float) -> str:
    return f"{bits:.2f}".rstrip("0").rstrip(".")


def _matrices(tensors: Tensors) -> Iterator[tuple[TensorInfo, GgmlType]]:
    for info in tensors.values():
        if len(info.shape) > 1 and info.type_name in TYPES:
            yield info, TYPES[info.type_name]
