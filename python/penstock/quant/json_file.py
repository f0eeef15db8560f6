"""Reads JSON files of models, checking their size and their types."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.base.errors import ModelError

MAX_JSON_BYTES = 32 << 20

T = TypeVar("T")


def read_json(path: Path, kind: type[T], limit_bytes: int = MAX_JSON_BYTES) -> T:
    """Decode the JSON file `path` to the type `kind`. Raises ModelError naming the file and the
    fault."""
    try:
        with path.open("rb") as file:
            # A read of the limit would allocate it, however small the file is.
            size = os.fstat(file.fileno()).st_size
            data = file.read(size) if size <= limit_bytes else b""
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
    if size > limit_bytes:
        raise ModelError(f"{path}: larger than {limit_bytes} bytes")
    return decode_json(data, kind, str(path))


def decode_json(data: bytes, kind: type[T], where: str) -> T:
    """Decode the JSON text `data` to the type `kind`. Numbers may be Infinity, which Python writes
    to configs. Raises ModelError that starts with `where`."""
    try:
        if b"Infinity" in data:
            return msgspec.convert(json.loads(data), kind)
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ModelError(f"{where}: {error}") from None
    except json.JSONDecodeError as error:
        raise ModelError(f"{where}: JSON is malformed: {error}") from None
    except UnicodeDecodeError:
        raise ModelError(f"{where}: not UTF-8") from None
