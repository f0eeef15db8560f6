"""Reads which layers of a hybrid model have attention, from config.json or GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.base.errors import ModelError
from penstock.models.decoder.spec_limits import MAX_LAYERS
from penstock.quant.gguf.gguf_file import GgufFile


def layer_kinds(
    types: Sequence[str], count: int | None, known: Mapping[str, str], where: str, key: str
) -> list[str]:
    """Return the kind of each layer.

    - `types`: the types in the file. `count`: the number of layers; None: that of `types`.
    - `known`: type -> kind. Several types may be one kind.
    - `key`: the key in the file, for messages.

    Raises ModelError that starts with `where` and names the key: for another number of layers, or
    for a type that is not known.
    """
    if not 1 <= len(types) <= MAX_LAYERS or (count is not None and len(types) != count):
        wanted = f"1..{MAX_LAYERS}" if count is None else count
        raise ModelError(f"{where}: {key} has {len(types)} entries, but must have {wanted}")
    unknown = sorted({kind for kind in types if kind not in known})
    if unknown:
        names = ", ".join(sorted(known))
        raise ModelError(f"{where}: {key}: {unknown} are not supported, known are {names}")
    return [known[kind] for kind in types]


def check_count(layers: int, where: str, key: str) -> None:
    """Check the number of layers. Raises ModelError that starts with `where` and names the key."""
    if not 1 <= layers <= MAX_LAYERS:
        raise ModelError(f"{where}: {key} {layers} is not in 1..{MAX_LAYERS}")


def every_nth(layers: int, interval: int, where: str, key: str) -> list[bool]:
    """Return for each layer whether it is the last of `interval` layers. Raises ModelError that
    starts with `where` and names the key if the interval is not positive."""
    if interval < 1:
        raise ModelError(f"{where}: {key} {interval} is not positive")
    return [(index + 1) % interval == 0 for index in range(layers)]


def gguf_per_layer(file: GgufFile, key: str, layers: int) -> list[int] | None:
    """Return an array of whole numbers with one entry per layer (further entries belong to layers
    that predict further tokens), or None if the key is a number or absent. Raises ModelError naming
    the key if entries are missing, negative or not whole."""
    value = file.metadata.get(key)
    if not isinstance(value, np.ndarray):
        return None
    if len(value) < layers or value.dtype.kind not in "iub" or value.min(initial=0) < 0:
        raise ModelError(f"{file.path}: {key} must have a whole number for each of {layers} layers")
    return [int(entry) for entry in value[:layers]]
