"""Reads the `quantization_config` of AMD Quark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.quantization_schemes import (
    Float8Scheme,
    IntegerScheme,
    LayoutName,
    Scheme,
    float8_block,
    grouping,
    joined,
    refuse_unless,
)

_FLOAT8 = ("fp8_e4m3", "fp8_e5m2")
_MX: dict[str, LayoutName] = {"fp4": "mxfp4_modelopt", "fp6_e2m3": "mxfp6_quark"}
_INTEGERS = ("int4", "uint4", "int8")


class _Tensors(msgspec.Struct):
    """The keys that describe the quantization of weights."""

    dtype: str
    qscheme: str | None = None
    group_size: int | None = None
    block_size: list[int] | None = None
    scale_format: str | None = None
    symmetric: bool | None = None


class _Layer(msgspec.Struct):
    weight: _Tensors | list[_Tensors] | None = None
    bias: object = None


class _Export(msgspec.Struct, frozen=True):
    weight_format: str = "real_quantized"
    pack_method: str = "reorder"


class _Quark(msgspec.Struct):
    """The keys of Quark. `exclude` is not read, because the tensors show which modules are
    quantized."""

    global_quant_config: _Layer | None = None
    layer_quant_config: dict[str, _Layer | None] | None = None
    layer_type_quant_config: dict[str, _Layer | None] | None = None
    export: _Export = _Export()


class _Named(msgspec.Struct):
    quantization_config: _Quark


def read_quark(path: Path) -> Scheme:
    """See `read_scheme`."""
    config = read_json(path, _Named).quantization_config
    where = f"{path}: quantization_config"
    refuse_unless(
        config.export.weight_format, ("real_quantized",), f"{where}: export: weight_format"
    )
    refuse_unless(config.export.pack_method, ("reorder", "order"), f"{where}: export: pack_method")
    schemes = [
        _scheme(weight, config.export.pack_method == "order", f"{where}: {key}: weight")
        for key, weight in _weights(config, where)
    ]
    if not schemes:
        raise ModelError(f"{where}: quantizes no weights")
    return joined(schemes, where)


def _weights(config: _Quark, where: str) -> Iterator[tuple[str, _Tensors]]:
    """Yield the descriptions of weights with their keys."""
    layers: dict[str, _Layer | None] = {"global_quant_config": config.global_quant_config}
    for named in (config.layer_quant_config, config.layer_type_quant_config):
        layers |= named or {}
    for key, layer in layers.items():
        if layer is None or layer.weight is None:
            continue
        if layer.bias is not None:
            raise ModelError(f"{where}: {key}: quantized biases are not supported")
        if isinstance(layer.weight, list):
            raise ModelError(f"{where}: {key}: weights of two levels are not supported")
        yield key, layer.weight


def _scheme(weight: _Tensors, in_order: bool, where: str) -> Float8Scheme | IntegerScheme:
    refuse_unless(weight.dtype, (*_FLOAT8, *_MX, *_INTEGERS), f"{where}: dtype")
    if weight.dtype in _FLOAT8:
        return Float8Scheme(_block(weight, where))
    if weight.dtype in _MX:
        refuse_unless(weight.qscheme, ("per_group",), f"{where}: qscheme")
        refuse_unless(weight.group_size, (32,), f"{where}: group_size")
        refuse_unless(weight.scale_format, ("e8m0",), f"{where}: scale_format")
        return IntegerScheme((_MX[weight.dtype],), symmetric=True)
    symmetric = weight.symmetric is True
    if weight.qscheme != "per_group":
        refuse_unless(weight.dtype, ("int8",), f"{where}: dtype")
        refuse_unless(weight.qscheme, ("per_tensor", "per_channel"), f"{where}: qscheme")
        return IntegerScheme(("int8",), grouping(8, None, (8,), where), symmetric)
    form = grouping(8 if weight.dtype == "int8" else 4, weight.group_size, (4, 8), where)
    return IntegerScheme((_of_groups(weight.dtype, in_order),), form, symmetric)


def _of_groups(dtype: str, in_order: bool) -> LayoutName:
    if dtype == "int8":
        return "quark_int8"
    if dtype == "int4":
        return "quark_int4_in_order" if in_order else "quark_int4"
    return "quark_uint4_in_order" if in_order else "quark_uint4"


def _block(weight: _Tensors, where: str) -> tuple[int, int] | None:
    refuse_unless(
        weight.qscheme, ("per_tensor", "per_channel", "per_block", "per_group"), f"{where}: qscheme"
    )
    if weight.qscheme == "per_block":
        return float8_block(weight.block_size, f"{where}: block_size")
    if weight.qscheme == "per_group" and weight.scale_format != "e8m0":
        if weight.group_size is None or weight.group_size <= 0:
            raise ModelError(f"{where}: group_size {weight.group_size} is not supported")
        return 1, weight.group_size
    return None
