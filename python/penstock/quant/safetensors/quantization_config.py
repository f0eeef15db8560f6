"""Reads the quantization of a Hugging Face folder from its config.json. Unsupported methods are
refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.compressed_tensors_config import read_compressed
from penstock.quant.safetensors.quantization_schemes import (
    BLOCK,
    Float8Scheme,
    Grouping,
    IntegerScheme,
    Mxfp4Scheme,
    Scheme,
    grouping,
    refuse_unless,
)

KNOWN = (
    "8-bit floats (quant_method fp8, and compressed-tensors with the format float-quantized), "
    "4-bit floats (quant_method mxfp4) and integers of 4 and 8 bits (quant_method gptq and awq, "
    "compressed-tensors with the formats pack-quantized and int-quantized, and the quantization of "
    "MLX)"
)


class _Method(msgspec.Struct):
    quant_method: object = None


class _MlxGroups(msgspec.Struct):
    """The quantization of a module, or of all modules that have no own entry."""

    group_size: int
    bits: int
    mode: str = "affine"


class _Named(msgspec.Struct):
    quantization_config: _Method | None = None
    quantization: object = None


class _Fp8(msgspec.Struct):
    fmt: str = "e4m3"
    activation_scheme: str = "dynamic"
    weight_block_size: list[int] | None = None


class _Gptq(msgspec.Struct):
    """The keys of GPTQ. `checkpoint_format` was later renamed to `format`. Keys that list
    unquantized modules are not read, here and in the other methods, because the tensors show which
    modules are quantized."""

    bits: int
    group_size: int
    sym: bool = False
    checkpoint_format: str | None = None
    format: str | None = None
    is_marlin_format: bool = False
    dynamic: dict[str, dict[str, object] | None] | None = None


class _Awq(msgspec.Struct):
    bits: int
    group_size: int
    version: str | None = None
    format: str | None = None
    backend: str | None = None


class _Fp8Named(msgspec.Struct):
    quantization_config: _Fp8


class _GptqNamed(msgspec.Struct):
    quantization_config: _Gptq


class _AwqNamed(msgspec.Struct):
    quantization_config: _Awq


class _MlxNamed(msgspec.Struct):
    """The keys of `_MlxGroups`, and module names with the module's own `_MlxGroups`, or with false
    if the module is not quantized."""

    quantization: dict[str, int | bool | str | _MlxGroups | None]


def read_scheme(path: Path) -> Scheme | None:
    """Return the quantization scheme that the config.json at `path` declares, or None. Raises
    ModelError naming the method or key that is not supported."""
    named = read_json(path, _Named)
    method = None if named.quantization_config is None else named.quantization_config.quant_method
    if method is None and named.quantization is not None:
        return _mlx(path)
    if named.quantization_config is None:
        return None
    readers: dict[str, Callable[[Path], Scheme]] = {
        "fp8": _fp8,
        "compressed-tensors": read_compressed,
        "gptq": _gptq,
        "awq": _awq,
        "mxfp4": lambda _: Mxfp4Scheme(),
    }
    reader = readers.get(str(method))
    if reader is None:
        raise ModelError(
            f"{path}: quantization_config: {method} weights are not supported, known are {KNOWN}"
        )
    return reader(path)


def _fp8(path: Path) -> Float8Scheme:
    """Read the scheme of FP8 weights with DeepSeek's blocks or with one scale per matrix. Static
    activation scales are ignored, because the kernels compute a scale for each row of
    activations."""
    config = read_json(path, _Fp8Named).quantization_config
    where = f"{path}: quantization_config"
    refuse_unless(config.fmt, ("e4m3",), f"{where}: fmt")
    refuse_unless(config.activation_scheme, ("dynamic", "static"), f"{where}: activation_scheme")
    size = config.weight_block_size
    if size not in (None, [BLOCK, BLOCK]):
        raise ModelError(
            f"{where}: weight_block_size {size} is not supported, only [{BLOCK}, {BLOCK}]"
        )
    return Float8Scheme(None if size is None else (BLOCK, BLOCK))


def _gptq(path: Path) -> IntegerScheme:
    """Read the scheme of GPTQ weights. `desc_act` is ignored, because the tensor `g_idx` shows
    whether columns are reordered."""
    config = read_json(path, _GptqNamed).quantization_config
    where = f"{path}: quantization_config"
    layout = "marlin" if config.is_marlin_format else config.checkpoint_format or config.format
    refuse_unless(layout, (None, "gptq", "gptq_v2"), f"{where}: checkpoint_format")
    for rule, changes in (config.dynamic or {}).items():
        if not rule.startswith("-:") and {"bits", "group_size"} & (changes or {}).keys():
            raise ModelError(f"{where}: dynamic: other bits or groups for {rule} are not supported")
    group = None if config.group_size == -1 else config.group_size
    form = grouping(config.bits, group, where)
    return IntegerScheme("gptq_v2" if layout == "gptq_v2" else "gptq", form, config.sym)


def _awq(path: Path) -> IntegerScheme:
    config = read_json(path, _AwqNamed).quantization_config
    where = f"{path}: quantization_config"
    version = config.version or config.format or "gemm"
    refuse_unless(version.lower(), ("gemm",), f"{where}: version")
    refuse_unless(config.backend, (None, "autoawq", "auto"), f"{where}: backend")
    refuse_unless(config.bits, (4,), f"{where}: bits")
    group = None if config.group_size == -1 else config.group_size
    return IntegerScheme("awq", grouping(config.bits, group, where), symmetric=False)


def _mlx(path: Path) -> IntegerScheme:
    given = read_json(path, _MlxNamed).quantization
    where = f"{path}: quantization"
    try:
        whole = msgspec.convert(given, _MlxGroups)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None
    own = {
        name: _mlx_grouping(value, f"{where}: {name}")
        for name, value in given.items()
        if isinstance(value, _MlxGroups)
    }
    return IntegerScheme("mlx", _mlx_grouping(whole, where), symmetric=False, own=own)


def _mlx_grouping(groups: _MlxGroups, where: str) -> Grouping:
    refuse_unless(groups.mode, ("affine",), f"{where}: mode")
    return grouping(groups.bits, groups.group_size, where)
