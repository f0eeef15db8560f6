"""The `quantization_config` of a Hugging Face folder: 8-bit floats are read, all else refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.quant.json_file import read_json

BLOCK = 128
"""The block sizes that kernels know are this, and whole rows or matrices."""


@dataclass(frozen=True, slots=True)
class Float8Scheme:
    """`block`: rows and columns that share a scale; None: whole rows, or all, as the shape of the
    scales says."""

    block: tuple[int, int] | None


class _Tensors(msgspec.Struct):
    """How compressed-tensors describes weights, or activations."""

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
    """The keys of both methods. Which modules are quantized (`modules_to_not_convert`, `ignore`)
    is not read: the types of the tensors say it."""

    quant_method: str | None = None
    fmt: str = "e4m3"
    activation_scheme: str = "dynamic"
    weight_block_size: list[int] | None = None
    format: str | None = None
    config_groups: dict[str, _Group] = {}
    kv_cache_scheme: dict[str, object] | None = None
    transform_config: dict[str, object] | None = None
    sparsity_config: dict[str, object] | None = None


class _Named(msgspec.Struct):
    quantization_config: _Quantization | None = None


class _Method(msgspec.Struct):
    quant_method: object = None


class _NamedMethod(msgspec.Struct):
    quantization_config: _Method | None = None


def read_scheme(path: Path) -> Float8Scheme | None:
    """What the config.json at `path` says of its weights; None where they are not quantized.
    Raises ModelError naming the method, or the key of it, that is not supported."""
    named = read_json(path, _NamedMethod).quantization_config
    if named is None:
        return None
    where = f"{path}: quantization_config"
    readers = {"fp8": _fp8, "compressed-tensors": _compressed}
    reader = readers.get(str(named.quant_method))
    if reader is None:
        raise ModelError(
            f"{where}: {named.quant_method} weights are not supported, known are 8-bit floats "
            "(quant_method fp8, and compressed-tensors with the format float-quantized)"
        )
    config = read_json(path, _Named).quantization_config
    assert config is not None
    return reader(config, where)


def _fp8(config: _Quantization, where: str) -> Float8Scheme:
    """DeepSeek's blocks, or a scale for each matrix. Static scales of activations are not needed:
    each row gets its own."""
    _refuse_unless(config.fmt, ("e4m3",), f"{where}: fmt")
    _refuse_unless(config.activation_scheme, ("dynamic", "static"), f"{where}: activation_scheme")
    size = config.weight_block_size
    return Float8Scheme(None if size is None else _block(size, f"{where}: weight_block_size"))


def _compressed(config: _Quantization, where: str) -> Float8Scheme:
    _refuse_unless(config.format, ("float-quantized",), f"{where}: format")
    for key in ("kv_cache_scheme", "transform_config", "sparsity_config"):
        value = getattr(config, key) or {}
        if value and value.get("format") != "dense":  # what is not sparse is said so, too
            raise ModelError(f"{where}: {key} is not supported")
    schemes = {_group(group, f"{where}: {name}") for name, group in config.config_groups.items()}
    if len(schemes) != 1:
        raise ModelError(
            f"{where}: config_groups must have one form of weights, not {len(schemes)}"
        )
    return schemes.pop()


def _group(group: _Group, where: str) -> Float8Scheme:
    weights = group.weights
    if weights is None:
        raise ModelError(f"{where}: weights are missing")
    for name, tensors in (("weights", weights), ("input_activations", group.input_activations)):
        if tensors is not None and (tensors.type, tensors.num_bits) != ("float", 8):
            raise ModelError(
                f"{where}: {name} are {tensors.type} of {tensors.num_bits} bits; 8-bit floats are "
                "supported"
            )
    if not weights.symmetric or group.output_activations is not None:
        raise ModelError(f"{where}: only symmetric weights and plain outputs are supported")
    known = ("tensor", "channel", "block", "group")
    _refuse_unless(weights.strategy, known, f"{where}: strategy")
    if weights.strategy == "block":
        return Float8Scheme(_block(weights.block_structure or [], f"{where}: block_structure"))
    if weights.strategy == "group":
        _refuse_unless(weights.group_size, (BLOCK,), f"{where}: group_size")
        return Float8Scheme((1, BLOCK))
    return Float8Scheme(None)


def _block(size: list[int], where: str) -> tuple[int, int]:
    if size != [BLOCK, BLOCK]:
        raise ModelError(f"{where}: {size} is not supported, [{BLOCK}, {BLOCK}] is")
    return BLOCK, BLOCK


def _refuse_unless(value: object, known: tuple[object, ...], where: str) -> None:
    if value not in known:
        raise ModelError(f"{where} {value!r} is not supported, known: {', '.join(map(str, known))}")
