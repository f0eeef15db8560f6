"""Checks the folder of a diffusers pipeline before it is loaded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.quant.json_file import decode_json, read_json

INDEX: Final = "model_index.json"
LIBRARIES: Final = frozenset({"diffusers", "transformers", "stable_diffusion", None})
"""Libraries whose classes a pipeline may name. Any other name would be code in the folder."""
MAX_HEADER_BYTES: Final = 100 << 20
_LENGTH: Final = struct.Struct("<Q")


class _Tensor(msgspec.Struct):
    shape: list[int] = msgspec.field(default_factory=list)


def check_pipeline(folder: Path) -> str:
    """Return the class of the pipeline in `folder`. Raises ModelError if it needs code that is in
    the folder, or has weights in pickled files only."""
    index = read_json(folder / INDEX, dict[str, Any])
    name = index.get("_class_name")
    if not isinstance(name, str):
        raise ModelError(f"{folder / INDEX}: _class_name must name a class of diffusers")
    for key, entry in index.items():
        if isinstance(entry, list) and entry and entry[0] not in LIBRARIES:
            raise ModelError(
                f"{folder / INDEX}: {key} needs the code {entry[0]!r}; only classes of diffusers"
                " and transformers are supported"
            )
    if not any(_weight_files(folder)):
        raise ModelError(f"{folder}: has no safetensors files; pickled weights are not read")
    return name


def count_weights(folder: Path) -> int:
    """Return the number of weights in the safetensors files of a pipeline. Raises ModelError for an
    invalid file."""
    return sum(
        prod(tensor.shape)
        for path in _weight_files(folder)
        for name, tensor in _header(path).items()
        if name != "__metadata__"
    )


def _weight_files(folder: Path) -> Iterator[Path]:
    """Yield the files that diffusers loads. Files of variants, such as `model.fp16.safetensors`,
    and of single-file checkpoints in the top folder are left out."""
    for path in sorted(folder.glob("*/*.safetensors")):
        if path.stem.count(".") == 0:
            yield path


def _header(path: Path) -> dict[str, _Tensor]:
    try:
        with path.open("rb") as file:
            start = file.read(_LENGTH.size)
            size = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else 0
            if not 0 < size <= MAX_HEADER_BYTES:
                raise ModelError(f"{path}: not a safetensors file")
            return decode_json(file.read(size), dict[str, _Tensor], str(path))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
