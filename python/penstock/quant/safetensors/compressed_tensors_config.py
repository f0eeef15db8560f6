"""Reads the `quantization_config` of compressed-tensors: integers, and floats of 4, 6 and 8
bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

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

MIXED = "mixed-precision"
"""The format of a folder whose groups name their own formats."""


class _Tensors(msgspec.Struct):
    """The keys that describe the quantization of weights or activations."""

    num_bits: int = 8
    type: str = "int"
    strategy: str | None = None
    symmetric: bool = True
    group_size: int | None = None
    block_structure: list[int] | None = None


class _Group(msgspec.Struct):
    weights: _Tensors | None = None
    input_activations: _Tensors | None = None
    output_activations: _Tensors | None = None
    format: str | None = None


class _Quantization(msgspec.Struct):
    """The keys of `quantization_config`. `targets` and `ignore`, which name the quantized modules,
    are not read, because the tensors show which modules are quantized."""

    format: str | None = None
    config_groups: dict[str, _Group] = {}
    transform_config: dict[str, object] | None = None
    sparsity_config: dict[str, object] | None = None


class _Named(msgspec.Struct):
    quantization_config: _Quantization


def read_compressed(path: Path) -> Scheme:
    """See `read_scheme`. Scales of a quantized KV cache are not used: the cache is exact."""
    config = read_json(path, _Named).quantization_config
    where = f"{path}: quantization_config"
    for key in ("transform_config", "sparsity_config"):
        value = getattr(config, key) or {}
        if value and value.get("format") != "dense":  # a sparsity_config of dense weights
            raise ModelError(f"{where}: {key} is not supported")
    refuse_unless(config.format, (*_READERS, MIXED), f"{where}: format")
    schemes = [
        _scheme(group, config.format, f"{where}: {name}")
        for name, group in config.config_groups.items()
    ]
    if not schemes:
        raise ModelError(f"{where}: config_groups are missing")
    return joined(schemes, f"{where}: config_groups")


def _scheme(group: _Group, format_: str | None, where: str) -> Float8Scheme | IntegerScheme:
    if group.weights is None:
        raise ModelError(f"{where}: weights are missing")
    if group.output_activations is not None:
        raise ModelError(f"{where}: only plain outputs are supported")
    own = group.format or format_
    refuse_unless(own, tuple(_READERS), f"{where}: format")
    return _READERS[str(own)](group, group.weights, where)


def _floats(group: _Group, weights: _Tensors, where: str) -> Float8Scheme:
    if (weights.type, weights.num_bits) != ("float", 8):
        raise ModelError(
            f"{where}: weights are {weights.type} of {weights.num_bits} bits; only 8-bit floats "
            "are supported"
        )
    inputs = group.input_activations
    if inputs is not None and (inputs.type, inputs.num_bits) != ("float", 8):
        raise ModelError(
            f"{where}: input_activations are {inputs.type} of {inputs.num_bits} bits; only 8-bit "
            "floats are supported"
        )
    if not weights.symmetric:
        raise ModelError(f"{where}: only symmetric 8-bit floats are supported")
    refuse_unless(weights.strategy, ("tensor", "channel", "block", "group"), f"{where}: strategy")
    if weights.strategy == "block":
        return Float8Scheme(float8_block(weights.block_structure, f"{where}: block_structure"))
    if weights.strategy == "group":
        if weights.group_size is None or weights.group_size <= 0:
            raise ModelError(f"{where}: group_size {weights.group_size} is not supported")
        return Float8Scheme((1, weights.group_size))
    return Float8Scheme(None)


def _packed(group: _Group, weights: _Tensors, where: str) -> IntegerScheme:
    return _integers(group, weights, "packed", where)


def _int8(group: _Group, weights: _Tensors, where: str) -> IntegerScheme:
    return _integers(group, weights, "int8", where)


def _naive(group: _Group, weights: _Tensors, where: str) -> Float8Scheme | IntegerScheme:
    if weights.type == "float":
        return _floats(group, weights, where)
    return _int8(group, weights, where)


def _float4(layout: LayoutName, bits: int, size: int) -> _Reader:
    """Return the reader of floats of `bits` bits in groups of `size` columns."""

    def read(group: _Group, weights: _Tensors, where: str) -> IntegerScheme:
        refuse_unless(weights.type, ("float",), f"{where}: type")
        refuse_unless(weights.num_bits, (bits,), f"{where}: num_bits")
        refuse_unless(weights.group_size, (size,), f"{where}: group_size")
        refuse_unless(weights.symmetric, (True,), f"{where}: symmetric")
        return IntegerScheme((layout,), symmetric=True)

    return read


def _integers(group: _Group, weights: _Tensors, layout: LayoutName, where: str) -> IntegerScheme:
    """Return the scheme of integer weights. Whether the config asks for quantized activations does
    not matter: the kernels for integer weights always quantize activations to 8 bits, in their own
    groups. Raises ModelError that starts with `where` and names the key that is not supported."""
    inputs = group.input_activations
    if weights.type != "int":
        raise ModelError(f"{where}: weights are {weights.type}, but the format has integers")
    if inputs is not None and (inputs.type, inputs.num_bits) not in _ACTIVATIONS:
        raise ModelError(
            f"{where}: input_activations are {inputs.type} of {inputs.num_bits} bits; only 8-bit "
            "integers and floats are supported"
        )
    strategies = ("group", "channel") if layout == "packed" else ("group", "channel", "tensor")
    refuse_unless(weights.strategy, strategies, f"{where}: strategy")
    size = weights.group_size if weights.strategy == "group" else None
    if weights.strategy == "group" and size is None:
        raise ModelError(f"{where}: group_size is missing")
    form = grouping(weights.num_bits, size, tuple(range(1, 9)), where)
    return IntegerScheme((layout,), form, weights.symmetric)


_ACTIVATIONS = (("int", 8), ("float", 8))

_Reader: TypeAlias = "Callable[[_Group, _Tensors, str], Float8Scheme | IntegerScheme]"

_READERS: Mapping[str, _Reader] = {
    "float-quantized": _floats,
    "mxfp8-quantized": _floats,
    "naive-quantized": _naive,
    "pack-quantized": _packed,
    "int-quantized": _int8,
    "nvfp4-pack-quantized": _float4("nvfp4", 4, 16),
    "mxfp4-pack-quantized": _float4("mxfp4", 4, 32),
    "mxfp6-pack-quantized": _float4("mxfp6", 6, 32),
}
