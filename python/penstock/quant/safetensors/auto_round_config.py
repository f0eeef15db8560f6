"""Reads the `quantization_config` of AutoRound, whose `packing_format` names the format of another
quantizer."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.quantization_schemes import (
    Float8Scheme,
    IntegerScheme,
    LayoutName,
    MixedScheme,
    Scheme,
    float8_block,
    grouping,
    refuse_unless,
)

_BITS = tuple(range(2, 9))
_AWQ_BITS = (4, 5, 6, 7)
_FLOATS_OF_GROUPS = ("mx_fp", "mx_fp4", "mx_fp8", "mx_fp_rceil", "nv_fp", "nv_fp4")
_FLOATS_OF_GROUPS_WITH_STATIC_SCALES = "nv_fp4_with_static_gs"
_FLOAT8 = ("fp", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_sym")


class _AutoRound(msgspec.Struct):
    """The keys of AutoRound. Folders of versions before 0.5 have `backend` instead of
    `packing_format`, with a kernel's name after the format. `extra_config` has the modules whose
    quantization differs."""

    bits: int
    group_size: int | list[int]
    sym: bool = True
    data_type: str = "int"
    act_bits: int | None = None
    packing_format: str | None = None
    backend: str | None = None
    extra_config: dict[str, dict[str, object]] | None = None
    rotation_config: dict[str, object] | None = None


class _Named(msgspec.Struct):
    quantization_config: _AutoRound


def read_auto_round(path: Path) -> Scheme:
    """See `read_scheme`."""
    config = read_json(path, _Named).quantization_config
    where = f"{path}: quantization_config"
    if config.rotation_config:
        raise ModelError(f"{where}: rotation_config is not supported")
    if config.data_type == "int":
        return _integers(config, where)
    if config.data_type in (*_FLOATS_OF_GROUPS, _FLOATS_OF_GROUPS_WITH_STATIC_SCALES):
        floats4 = IntegerScheme(("nvfp4", "mxfp4"), symmetric=True)
        return MixedScheme(floats4, Float8Scheme(None))
    refuse_unless(config.data_type, ("int", *_FLOATS_OF_GROUPS, *_FLOAT8), f"{where}: data_type")
    return Float8Scheme(_block(config.group_size, where))


def _integers(config: _AutoRound, where: str) -> IntegerScheme:
    if config.act_bits is not None and config.act_bits <= 8:
        raise ModelError(f"{where}: act_bits {config.act_bits} with integers is not supported")
    if isinstance(config.group_size, list):
        raise ModelError(f"{where}: group_size {config.group_size} is not supported for integers")
    layout = _layout(config.packing_format or config.backend or "auto_round:auto_gptq", where)
    bits = _AWQ_BITS if layout == "awq" else _BITS
    group = None if config.group_size == -1 else config.group_size
    form = grouping(config.bits, group, bits, where)
    changed = any(
        {"bits", "group_size"} & changes.keys() and changes.get("bits", config.bits) != 16
        for changes in (config.extra_config or {}).values()
    )
    return IntegerScheme((layout,), None if changed else form, config.sym)


def _layout(packing: str, where: str) -> LayoutName:
    """Return the layout that a packing format names. Except in those of GPTQ, zero points are
    stored as they are, as in the second version of GPTQ's format."""
    name, _, kind = packing.replace("-", "_").replace("autoround", "auto_round").partition(":")
    if name != "auto_round" or kind.split(":")[0] == "fake":
        raise ModelError(f"{where}: packing_format {packing} is not supported")
    if "awq" in kind:
        return "awq"
    if "gptq" in kind and "gptqmodel" not in kind:
        return "gptq"
    return "gptq_v2"


def _block(group_size: int | list[int], where: str) -> tuple[int, int] | None:
    """Return the block of 8-bit floats: a list is one, -1 and 0 are rows and whole matrices."""
    if isinstance(group_size, int):
        if group_size > 0:
            raise ModelError(f"{where}: group_size {group_size} is not supported for 8-bit floats")
        return None
    return float8_block(group_size, f"{where}: group_size")
