"""Reads the quantization of a Hugging Face folder from its config.json. Unsupported methods are
refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.auto_round_config import read_auto_round
from penstock.quant.safetensors.compressed_tensors_config import read_compressed
from penstock.quant.safetensors.mlx_config import read_metal, read_mlx
from penstock.quant.safetensors.quantization_schemes import (
    Float8Scheme,
    IntegerScheme,
    LayoutName,
    MixedScheme,
    Mxfp4Scheme,
    Scheme,
    float8_block,
    grouping,
    refuse_unless,
)
from penstock.quant.safetensors.quark_config import read_quark
from penstock.quant.safetensors.torchao_config import read_torchao

KNOWN = (
    "fp8, fbgemm_fp8, mxfp4, gptq, awq, auto-round, hqq, bitsandbytes, modelopt, quark, torchao, "
    "metal, compressed-tensors and the quantization of MLX"
)
GPTQ_BITS = (2, 3, 4, 8)

_FLOAT4 = IntegerScheme(("nvfp4_modelopt", "nvfp4_turned", "mxfp4_modelopt"), symmetric=True)
AWQ_VERSIONS: Mapping[str, tuple[LayoutName, ...]] = {
    "gemm": ("awq",),
    "exllama": ("awq",),
    "exllamav2": ("awq",),
    "gemv": ("awq_gemv",),
    "gemv_fast": ("awq_gemv_fast", "llm_awq"),
    "llm-awq": ("llm_awq", "awq_gemv_fast", "awq"),
    "marlin": ("awq_marlin",),
}
"""The packings of AWQ. ExLlama's kernels read that of GEMM and pack it again in memory."""
MODELOPT_FILE = "hf_quant_config.json"
MODELOPT_SCHEMES: Mapping[str, Scheme] = {
    "FP8": Float8Scheme(None),
    "FP8_PER_CHANNEL_PER_TOKEN": Float8Scheme(None),
    "FP8_PB_WO": Float8Scheme((128, 128)),
    "MXFP8": Float8Scheme(None),
    "NVFP4": _FLOAT4,
    "W4A16_NVFP4": _FLOAT4,
    "MXFP4": _FLOAT4,
    "W4A16_MXFP4": _FLOAT4,
    "W4A8_MXFP4_FP8": _FLOAT4,
    "MIXED_PRECISION": MixedScheme(_FLOAT4, Float8Scheme(None)),
}


class _Method(msgspec.Struct):
    quant_method: object = None
    group_size: object = None


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


class _Modelopt(msgspec.Struct):
    quant_algo: str | None = None


class _ModeloptNamed(msgspec.Struct):
    quantization_config: _Modelopt


class _ModeloptFile(msgspec.Struct):
    """hf_quant_config.json, which older folders of modelopt have instead."""

    quantization: _Modelopt


class _Bitsandbytes(msgspec.Struct):
    load_in_4bit: bool = False
    load_in_8bit: bool = False


class _BitsandbytesNamed(msgspec.Struct):
    quantization_config: _Bitsandbytes


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


def read_scheme(path: Path) -> Scheme | None:
    """Return the quantization scheme that the config.json at `path` declares, or None. Raises
    ModelError naming the method or key that is not supported."""
    named = read_json(path, _Named)
    method = None if named.quantization_config is None else named.quantization_config.quant_method
    if method is None and named.quantization is not None:
        return read_mlx(path, "quantization")
    if named.quantization_config is None:
        beside = path.with_name(MODELOPT_FILE)
        return _modelopt_file(beside) if beside.exists() else None
    if method is None and named.quantization_config.group_size is not None:
        return read_mlx(path, "quantization_config")
    readers: dict[str, Callable[[Path], Scheme]] = {
        "fp8": _fp8,
        "compressed-tensors": read_compressed,
        "gptq": _gptq,
        "awq": _awq,
        "mxfp4": lambda _: Mxfp4Scheme(),
        "fbgemm_fp8": lambda _: Float8Scheme(None),
        "hqq": lambda _: IntegerScheme(("hqq", "hqq_rows")),
        "bitsandbytes": _bitsandbytes,
        "modelopt": _modelopt,
        "auto-round": read_auto_round,
        "intel/auto-round": read_auto_round,
        "metal": read_metal,
        "quark": read_quark,
        "torchao": read_torchao,
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
    refuse_unless(config.fmt, ("e4m3", "e5m2"), f"{where}: fmt")
    refuse_unless(config.activation_scheme, ("dynamic", "static"), f"{where}: activation_scheme")
    size = config.weight_block_size
    return Float8Scheme(None if size is None else float8_block(size, f"{where}: weight_block_size"))


def _gptq(path: Path) -> IntegerScheme:
    """Read the scheme of GPTQ weights. `desc_act` is ignored, because the tensor `g_idx` shows
    whether columns are reordered. If rules in `dynamic` change bits or groups of some modules, the
    shapes of the tensors show them."""
    config = read_json(path, _GptqNamed).quantization_config
    where = f"{path}: quantization_config"
    layout = "marlin" if config.is_marlin_format else config.checkpoint_format or config.format
    refuse_unless(layout, (None, "gptq", "gptq_v2", "marlin"), f"{where}: checkpoint_format")
    group = None if config.group_size == -1 else config.group_size
    if layout == "marlin":
        return IntegerScheme(("marlin",), grouping(config.bits, group, (4,), where), symmetric=True)
    form = grouping(config.bits, group, GPTQ_BITS, where)
    changed = any(
        not rule.startswith("-:") and {"bits", "group_size"} & (changes or {}).keys()
        for rule, changes in (config.dynamic or {}).items()
    )
    return IntegerScheme(
        ("gptq_v2" if layout == "gptq_v2" else "gptq",), None if changed else form, config.sym
    )


def _awq(path: Path) -> IntegerScheme:
    """Read the scheme of AWQ weights. `version` names the packing; `backend` names a kernel, except
    llm-awq, whose packing is GEMV-fast or, in older folders, GEMM."""
    config = read_json(path, _AwqNamed).quantization_config
    where = f"{path}: quantization_config"
    version = (config.version or config.format or "gemm").lower()
    if config.backend == "llm-awq":
        version = "llm-awq"
    refuse_unless(version, tuple(AWQ_VERSIONS), f"{where}: version")
    refuse_unless(config.bits, (4,), f"{where}: bits")
    group = None if config.group_size == -1 else config.group_size
    form = grouping(config.bits, group, (4,), where)
    return IntegerScheme(AWQ_VERSIONS[version], form, version == "marlin")


def _bitsandbytes(path: Path) -> IntegerScheme:
    """Read the scheme of bitsandbytes weights. Their tensors name NF4 and FP4."""
    config = read_json(path, _BitsandbytesNamed).quantization_config
    if config.load_in_4bit == config.load_in_8bit:
        raise ModelError(
            f"{path}: quantization_config: one of load_in_4bit and load_in_8bit must be true"
        )
    return IntegerScheme(("bnb_4bit",) if config.load_in_4bit else ("bnb_int8",), symmetric=True)


def _modelopt(path: Path) -> Scheme:
    config = read_json(path, _ModeloptNamed).quantization_config
    return _modelopt_scheme(config, f"{path}: quantization_config")


def _modelopt_file(path: Path) -> Scheme | None:
    config = read_json(path, _ModeloptFile).quantization
    if config.quant_algo is None:  # only the KV cache is quantized
        return None
    return _modelopt_scheme(config, f"{path}: quantization")


def _modelopt_scheme(config: _Modelopt, where: str) -> Scheme:
    """Return the scheme of modelopt weights. Scales of activations and of the KV cache are not
    used. In the algorithm MIXED_PRECISION the types of the tensors show the format of each
    module."""
    refuse_unless(config.quant_algo, tuple(MODELOPT_SCHEMES), f"{where}: quant_algo")
    return MODELOPT_SCHEMES[str(config.quant_algo)]
