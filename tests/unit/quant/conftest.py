"""Small files built byte by byte, so that tests can corrupt any byte."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest


def gguf_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def small_gguf(values: np.ndarray) -> bytes:
    """Return a GGUF with three keys (a number, a string, an array of strings) and two tensors: `m`
    [2, 32] Q8_0 with scale 1 and quants 0..63, and `v` [8] F32 = `values`."""
    keys = [
        gguf_string("general.alignment") + struct.pack("<II", 4, 32),
        gguf_string("general.architecture") + struct.pack("<I", 8) + gguf_string("llama"),
        gguf_string("tokens")
        + struct.pack("<IIQ", 9, 8, 3)
        + b"".join(gguf_string(token) for token in ("a", "", "\u0120x")),
    ]
    tensors = [
        gguf_string("m") + struct.pack("<IQQIQ", 2, 32, 2, 8, 0),
        gguf_string("v") + struct.pack("<IQIQ", 1, 8, 0, 96),
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    header += b"".join(keys) + b"".join(tensors)
    header += bytes(-len(header) % 32)
    quants = np.arange(64, dtype=np.int8).reshape(2, 32)
    rows = [np.float16(1).tobytes() + row.tobytes() for row in quants]
    matrix = b"".join(rows)
    return header + matrix + bytes(96 - len(matrix)) + values.astype("<f4").tobytes()


@pytest.fixture
def gguf_bytes() -> bytes:
    return small_gguf(np.arange(8))


@pytest.fixture
def gguf_path(tmp_path: Path, gguf_bytes: bytes) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(gguf_bytes)
    return path
