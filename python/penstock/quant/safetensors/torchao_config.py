"""Reads the `quantization_config` of torchao, and the names that its safetensors files give to the
parts of a quantized tensor.

A parameter `weight` is stored as `_weight_qdata`, `_weight_scale` and `_weight_zero_point`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.errors import ModelError
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.quantization_schemes import (
    Float8Scheme,
    IntegerScheme,
    Scheme,
    float8_block,
    joined,
)

_INT8: Final = (
    "Int8WeightOnlyConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Int8StaticActivationInt8WeightConfig",
)
_UNPACKED: Final = ("IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig")
_FLOAT8: Final = ("Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig")
_INT4: Final = ("Int4WeightOnlyConfig",)
_OF_NAMES: Final = ("FqnToConfig", "ModuleFqnToConfig")
KNOWN: Final = (*_INT8, *_UNPACKED, *_FLOAT8, *_INT4, *_OF_NAMES)
_PART: Final = re.compile(r"(.*\.)?_(\w+?)_(qdata|scale|zero_point|act_quant_\w+)")
_NAMES: Final = {
    "qdata": "weight",
    "scale": "weight_scale",
    "zero_point": "weight_zero_point",
    "act_quant_scale": "input_scale",
    "act_quant_zero_point": "input_zero_point",
}
"""The names of a quantized tensor's parts -> those that compressed-tensors gives them."""
_UNREAD: Final = re.compile(r".*\._\w+_(scale_and_zero|act_pre_scale)")


class _Typed(msgspec.Struct):
    """An object of torchao in JSON: the name of its class and its attributes."""

    type: str = msgspec.field(name="_type")
    data: dict[str, object] | str = msgspec.field(name="_data", default_factory=dict)


class _Torchao(msgspec.Struct):
    quant_type: dict[str, _Typed | str] | str


class _Named(msgspec.Struct):
    quantization_config: _Torchao


def read_torchao(path: Path) -> Scheme:
    """See `read_scheme`."""
    given = read_json(path, _Named).quantization_config.quant_type
    where = f"{path}: quantization_config: quant_type"
    if isinstance(given, str) or not all(isinstance(one, _Typed) for one in given.values()):
        raise ModelError(
            f"{where}: {given} is of a version of torchao that saves no safetensors; save the "
            "folder again with a current one"
        )
    schemes = [_scheme(one, where) for one in given.values() if isinstance(one, _Typed)]
    flat = [scheme for each in schemes for scheme in each]
    if not flat:
        raise ModelError(f"{where}: names no quantization")
    return joined(flat, where)


def _scheme(config: _Typed, where: str) -> list[Float8Scheme | IntegerScheme]:
    """Return the schemes that a configuration names: one, or those of its modules."""
    data = config.data if isinstance(config.data, dict) else {}
    where = f"{where}: {config.type}"
    if config.type in _OF_NAMES:
        own = data.get("fqn_to_config") or data.get("module_fqn_to_config") or {}
        try:
            each = msgspec.convert(own, dict[str, _Typed | None])
        except msgspec.ValidationError as error:
            raise ModelError(f"{where}: {error}") from None
        return [one for value in each.values() if value for one in _scheme(value, where)]
    if config.type in _INT8:
        return [IntegerScheme(("int8",))]
    if config.type in _UNPACKED:
        _refuse_packing(data, "intx_packing_format", ("UNPACKED_TO_INT8",), where)
        return [IntegerScheme(("int8",))]
    if config.type in _INT4:
        _refuse_packing(data, "int4_packing_format", ("PLAIN",), where)
        return [IntegerScheme(("torchao_int4",))]
    if config.type in _FLOAT8:
        return [Float8Scheme(_block(data.get("granularity"), where))]
    raise ModelError(f"{where} is not supported, known: {', '.join(KNOWN)}")


def _refuse_packing(
    data: Mapping[str, object], key: str, known: tuple[str, ...], where: str
) -> None:
    value = data.get(key)
    name = value.get("_data") if isinstance(value, dict) else value
    if name is not None and str(name).upper() not in known:
        raise ModelError(
            f"{where}: {key} {name} is the layout of one kind of device; save the folder again "
            f"with {known[0]}"
        )


def _block(given: object, where: str) -> tuple[int, int] | None:
    """Return the block of 8-bit floats of the weights, the last of several granularities."""
    last = given[-1] if isinstance(given, list) and given else given
    if not isinstance(last, dict) or last.get("_type") != "PerBlock":
        return None
    data = last.get("_data")
    size = data.get("block_size") if isinstance(data, dict) else None
    return float8_block(size, f"{where}: block_size")


def torchao_names(names: Iterable[str], path: Path) -> dict[str, str]:
    """Return for each tensor that is part of a quantized one the name under which the layouts of
    compressed-tensors expect it. Raises ModelError naming a tensor of a layout that is not
    read."""
    found = {}
    for name in names:
        if _UNREAD.fullmatch(name):
            raise ModelError(f"{path}: {name} is of a layout of torchao that is not supported")
        match = _PART.fullmatch(name)
        if match is not None and match[3] in _NAMES:
            module = match[1] or ""
            owner = module if match[2] == "weight" else f"{module}{match[2]}."
            found[name] = owner + _NAMES[match[3]]
    return found
