"""Reads the `quantization_config` of compressed-tensors: 8-bit floats, and integers of 4 or 8
bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.quantization_schemes import (
    BLOCK,
    Float8Scheme,
    IntegerScheme,
    LayoutName,
    Scheme,
    grouping,
    refuse_unless,
)


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


class _Quantization(msgspec.Struct):
    """The keys of `quantization_config`. `targets` and `ignore`, which name the quantized modules,
    are not read, because the tensors show which modules are quantized."""

    format: str | None = None
    config_groups: dict[str, _Group] = {}
    kv_cache_scheme: dict[str, object] | None = None
    transform_config: dict[str, object] | None = None
    sparsity_config: dict[str, object] | None = None


class _Named(msgspec.Struct):
    quantization_config: _Quantization


def read_compressed(path: Path) -> Scheme:
    """See `read_scheme`."""
    config = read_json(path, _Named).quantization_config
    where = f"{path}: quantization_config"
    refuse_unless(config.format, tuple(_READERS), f"{where}: format")
    for key in ("kv_cache_scheme", "transform_config", "sparsity_config"):
        value = getattr(config, key) or {}
        if value and value.get("format") != "dense":  # a sparsity_config of dense weights
            raise ModelError(f"{where}: {key} is not supported")
    reader = _READERS[str(config.format)]
    schemes = {
        _scheme(group, reader, f"{where}: {name}") for name, group in config.config_groups.items()
    }
    if len(schemes) != 1:
        raise ModelError(
            f"{where}: config_groups must describe one form of weights, not {len(schemes)}"
        )
    return schemes.pop()


def _scheme(group: _Group, reader: Callable[[_Group, _Tensors, str], Scheme], where: str) -> Scheme:
    if group.weights is None:
        raise ModelError(f"{where}: weights are missing")
    if group.output_activations is not None:
        raise ModelError(f"{where}: only plain outputs are supported")
    return reader(group, group.weights, where)


def _floats(group: _Group, weights: _Tensors, where: str) -> Float8Scheme:
    for name, tensors in (("weights", weights), ("input_activations", group.input_activations)):
        if tensors is not None and (tensors.type, tensors.num_bits) != ("float", 8):
            raise ModelError(
                f"{where}: {name} are {tensors.type} of {tensors.num_bits} bits; only 8-bit floats "
                "are supported"
            )
    if not weights.symmetric:
        raise ModelError(f"{where}: only symmetric 8-bit floats are supported")
    refuse_unless(weights.strategy, ("tensor", "channel", "block", "group"), f"{where}: strategy")
    if weights.strategy == "block":
        size = weights.block_structure or []
        if size != [BLOCK, BLOCK]:
            raise ModelError(
                f"{where}: block_structure {size} is not supported, only [{BLOCK}, {BLOCK}]"
            )
        return Float8Scheme((BLOCK, BLOCK))
    if weights.strategy == "group":
        refuse_unless(weights.group_size, (BLOCK,), f"{where}: group_size")
        return Float8Scheme((1, BLOCK))
    return Float8Scheme(None)


def _packed(group: _Group, weights: _Tensors, where: str) -> IntegerScheme:
    return _integers(group, weights, "packed", where)


def _int8(group: _Group, weights: _Tensors, where: str) -> IntegerScheme:
    refuse_unless(weights.num_bits, (8,), f"{where}: num_bits")
    return _integers(group, weights, "int8", where)


def _integers(group: _Group, weights: _Tensors, layout: LayoutName, where: str) -> IntegerScheme:
    """Return the scheme of integer weights. Whether the config asks for 8-bit activations does not
    matter: the kernels for integer weights always quantize activations, in their own groups. Raises
    ModelError that starts with `where` and names the key that is not supported."""
    inputs = group.input_activations
    if weights.type != "int":
        raise ModelError(f"{where}: weights are {weights.type}, but the format has integers")
    if inputs is not None and (inputs.type, inputs.num_bits) != ("int", 8):
        raise ModelError(
            f"{where}: input_activations are {inputs.type} of {inputs.num_bits} bits; only 8-bit "
            "integers are supported"
        )
    refuse_unless(weights.strategy, ("group", "channel"), f"{where}: strategy")
    size = weights.group_size if weights.strategy == "group" else None
    if weights.strategy == "group" and size is None:
        raise ModelError(f"{where}: group_size is missing")
    return IntegerScheme(layout, grouping(weights.num_bits, size, where), weights.symmetric)


_READERS: Mapping[str, Callable[[_Group, _Tensors, str], Scheme]] = {
    "float-quantized": _floats,
    "pack-quantized": _packed,
    "int-quantized": _int8,
}
