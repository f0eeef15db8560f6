"""Reads the quantization of folders that MLX wrote, and that of the method `metal` of
transformers, which has the same integers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from penstock.base.errors import ModelError
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.quantization_schemes import (
    Grouping,
    IntegerScheme,
    LayoutName,
    grouping,
    refuse_unless,
)

MLX_BITS = (2, 3, 4, 5, 6, 8)
MLX_FLOATS = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
"""The modes of floats, with their bits and group sizes."""
MLX_LAYOUTS: tuple[LayoutName, ...] = ("mlx", "mlx_mxfp4", "mlx_nvfp4", "mlx_mxfp8")
METAL_BITS = (2, 4, 8)


class _Groups(msgspec.Struct):
    """The quantization of a module, or of all modules that have no own entry."""

    group_size: int
    bits: int
    mode: str = "affine"


Entries = dict[str, int | bool | str | _Groups | None]
"""The keys of `_Groups`, and module names with the module's own `_Groups`, or with false if the
module is not quantized."""


class _First(msgspec.Struct):
    quantization: Entries


class _Second(msgspec.Struct):
    quantization_config: Entries


_KEYS: dict[str, type[_First | _Second]] = {
    "quantization": _First,
    "quantization_config": _Second,
}


class _Metal(msgspec.Struct):
    bits: int = 4
    group_size: int = 64


class _MetalNamed(msgspec.Struct):
    quantization_config: _Metal


def read_mlx(path: Path, key: Literal["quantization", "quantization_config"]) -> IntegerScheme:
    """Return the scheme under a key of config.json; see `read_scheme`. MLX writes both keys, and
    some tools keep only the second."""
    given: Entries = getattr(read_json(path, _KEYS[key]), key)
    where = f"{path}: {key}"
    try:
        whole = msgspec.convert(given, _Groups)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None
    own = {
        name: _grouping(value, f"{where}: {name}")
        for name, value in given.items()
        if isinstance(value, _Groups)
    }
    return IntegerScheme(MLX_LAYOUTS, _grouping(whole, where), own=own)


def read_metal(path: Path) -> IntegerScheme:
    """See `read_scheme`."""
    config = read_json(path, _MetalNamed).quantization_config
    where = f"{path}: quantization_config"
    return IntegerScheme(("metal",), grouping(config.bits, config.group_size, METAL_BITS, where))


def _grouping(groups: _Groups, where: str) -> Grouping:
    refuse_unless(groups.mode, ("affine", *MLX_FLOATS), f"{where}: mode")
    if groups.mode in MLX_FLOATS:
        refuse_unless((groups.bits, groups.group_size), (MLX_FLOATS[groups.mode],), where)
        return Grouping(groups.bits, groups.group_size)
    return grouping(groups.bits, groups.group_size, MLX_BITS, where)
