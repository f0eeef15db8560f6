"""Matrices in the packings of AWQ's kernels, Marlin, MLX's 8-bit floats, AutoRound, Quark and
torchao, written number by number from the descriptions of the formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.support.checkpoints.integer_checkpoints import words
from tests.support.checkpoints.quantized_folders import (
    Format,
    Written,
    gptq,
    int_tensor,
    mxfp4_ct,
    mxfp4_modelopt,
    mxfp6_ct,
    mxfp8,
    nvfp4_ct,
)

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Writer = Callable[[torch.Tensor], Written]


def quantized(
    weight: torch.Tensor, bits: int, group: int, symmetric: bool = False
) -> tuple[np.ndarray, torch.Tensor, np.ndarray, torch.Tensor]:
    """Return q [N, C], scale [N, G] in float16, zero [N, G] and the float32 values."""
    parts = weight.unflatten(1, (-1, group)).double()
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    top = 2**bits - 1
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    scale = ((high - low) / top).half()
    zero = torch.full_like(low, 2 ** (bits - 1))
    if not symmetric:
        zero = (-low / scale.double()).round().clamp(0, top)
    spread, middle = (one.double().repeat_interleave(group, 1) for one in (scale, zero))
    q = (weight / spread + middle).round().clamp(0, top)
    values = ((q - middle) * spread).float()
    return q.numpy().astype(int), scale, zero.numpy().astype(int), values


def int32(packed: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(packed).view(np.int32))


def padded_groups(groups: int, group: int) -> int:
    """Return the scales per row of AWQ's GEMV: words of 8, in fours or twos for small groups."""
    step = {32: 4, 64: 2}.get(group, 1)
    count = (groups + 7) // 8
    return 8 * step * ((count + step - 1) // step)


def _padded(array: np.ndarray, width: int) -> np.ndarray:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])))


def awq_gemv(group: int) -> Writer:
    def write(weight: torch.Tensor) -> Written:
        q, scale, zero, values = quantized(weight, 4, group)
        width = padded_groups(zero.shape[1], group)
        return {
            "qweight": int32(words(q, 4)),
            "qzeros": int32(words(_padded(zero, width), 4)),
            "scales": torch.from_numpy(_padded(scale.numpy(), width)),
        }, values

    return write


def fast_place(row: int, column: int) -> tuple[int, int, int]:
    """Return the word [N / 4, C] and the nibble in which GEMV-fast stores a number."""
    pair = column % 8 // 2
    place = 8 * pair + 2 * (column % 32 // 8) + column % 2
    place = place // 8 * 8 + place % 8 % 2 * 4 + place % 8 // 2
    column = column // 32 * 32 + place
    entry = row % 4 * 64 + column % 64
    return row // 4, column // 64 * 64 + entry // 4, entry % 4


def llm_awq(weight: torch.Tensor) -> Written:
    """llm-awq gives another name to the minima of AutoAWQ's GEMV-fast."""
    tensors, values = awq_gemv_fast(weight)
    return tensors | {"scaled_zeros": tensors.pop("qzeros")}, values


def awq_gemv_fast(weight: torch.Tensor) -> Written:
    q, scale, zero, _ = quantized(weight, 4, 64)
    packed = np.zeros((q.shape[0] // 4, q.shape[1]), np.uint16)
    for row, column in np.ndindex(q.shape):
        line, word, nibble = fast_place(row, column)
        packed[line, word] |= np.uint16(q[row, column] << 4 * nibble)
    minimum = (-scale.float() * torch.from_numpy(zero)).half()
    values = torch.from_numpy(q) * scale.double().repeat_interleave(64, 1)
    values += minimum.double().repeat_interleave(64, 1)
    width = padded_groups(zero.shape[1], 64)
    scales, minima = (_padded(one.numpy(), width).T for one in (scale, minimum))
    return {
        "qweight": torch.from_numpy(packed.view(np.int16)),
        "scales": torch.from_numpy(np.ascontiguousarray(scales)),
        "qzeros": torch.from_numpy(np.ascontiguousarray(minima)),
    }, values.float()


def marlin_place(row: int, column: int) -> tuple[int, int]:
    """Return the tile row and the place in its stream at which Marlin stores a number."""
    k, n = column % 16, row % 16
    thread = n % 8 * 4 + k % 8 // 2
    entry = n // 8 * 4 + k // 8 * 2 + k % 2
    return column // 16, row // 64 * 1024 + thread * 32 + row % 64 // 16 * 8 + AWQ_ORDER.index(
        entry
    )


def marlin_scale_place(row: int, groups: int) -> int:
    if groups > 1:
        return row // 64 * 64 + row % 8 * 8 + row % 64 // 8
    places = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    return row // 32 * 32 + places.index(row % 32)


def marlin(group: int | None, names: tuple[str, str]) -> Writer:
    def write(weight: torch.Tensor) -> Written:
        q, scale, _, values = quantized(weight, 4, group or weight.shape[1], symmetric=True)
        rows, columns = q.shape
        stream = np.zeros((columns // 16, 16 * rows), int)
        for row, column in np.ndindex(q.shape):
            stream[marlin_place(row, column)] = q[row, column]
        stored = torch.empty_like(scale)
        for row in range(rows):
            stored[marlin_scale_place(row, scale.shape[1])] = scale[row]
        return {names[0]: int32(words(stream, 4)), names[1]: stored.T.contiguous()}, values

    return write


def mlx_mxfp8(weight: torch.Tensor) -> Written:
    tensors, values = mxfp8(weight)
    return {
        "weight": tensors["weight"].view(torch.uint8).view(torch.uint32),
        "scales": tensors["weight_scale"],
    }, values


def metal(weight: torch.Tensor) -> Written:
    q, scale, zero, _ = quantized(weight, 8, 64)
    minimum = -scale.float() * torch.from_numpy(zero)
    values = torch.from_numpy(q) * scale.double().repeat_interleave(64, 1)
    values += minimum.double().repeat_interleave(64, 1)
    packed = torch.from_numpy(words(q, 8))
    return {"weight": packed, "scales": scale.float(), "qbiases": minimum}, values.float()


def float8_e5m2(weight: torch.Tensor) -> Written:
    scale = weight.abs().amax(1, keepdim=True) / 57344
    codes = (weight / scale).to(torch.float8_e5m2)
    values = (codes.float() * scale).bfloat16().float()
    return {"weight": codes, "weight_scale": scale}, values


def stream(numbers: np.ndarray, bits: int, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """Pack [N, C] integers as a stream of bits, each 8 of them in an order."""
    each = numbers.reshape(len(numbers), -1, 8)[:, :, order].reshape(len(numbers), -1, 1)
    bits_of = np.unpackbits(each.astype(np.uint8), axis=-1, bitorder="little")[..., :bits]
    packed = np.packbits(bits_of.reshape(len(numbers), -1), axis=1, bitorder="little")
    return np.ascontiguousarray(packed).view(np.uint32)


def auto_round(bits: int, awq: bool = False) -> Writer:
    """Return the writer of AutoRound's own form of GPTQ, which stores zero points as they are, or
    of its AWQ."""

    def write(weight: torch.Tensor) -> Written:
        q, scale, zero, values = quantized(weight, bits, 32)
        if awq:
            quants = stream(q.T, bits, AWQ_ORDER)
            zeros = stream(zero.T, bits, AWQ_ORDER)
        else:
            quants, zeros = stream(q, bits).T, stream(zero.T, bits)
        return {
            "qweight": int32(quants),
            "qzeros": int32(zeros),
            "scales": scale.T.contiguous(),
        }, values

    return write


def quark_int4(signed: bool, order: tuple[int, ...] = ()) -> Writer:
    def write(weight: torch.Tensor) -> Written:
        q, scale, zero, values = quantized(weight, 4, 32)
        middle = 8 if signed else 0
        return {
            "weight": int32(words(q.T - middle & 15, 4, order)),
            "weight_scale": scale.T.contiguous(),
            "weight_zero_point": int32(words(zero.T - middle & 15, 4, order)),
        }, values

    return write


def quark_int8(weight: torch.Tensor) -> Written:
    q, scale, zero, values = quantized(weight, 8, 64)
    return {
        "weight": torch.from_numpy((q.T - 128).astype(np.int8)),
        "weight_scale": scale.T.contiguous(),
        "weight_zero_point": torch.from_numpy((zero.T - 128).astype(np.int8)),
    }, values


def quark_mxfp6(weight: torch.Tensor) -> Written:
    tensors, values = mxfp6_ct(weight)
    return {"weight": tensors["weight_packed"], "weight_scale": tensors["weight_scale"]}, values


def torchao_int4(weight: torch.Tensor) -> Written:
    q, scale, zero, _ = quantized(weight, 4, 64)
    middle = ((8 - torch.from_numpy(zero)) * scale.double()).bfloat16()
    signed = torch.from_numpy(q - 8)
    values = signed * scale.double().repeat_interleave(64, 1)
    values += middle.double().repeat_interleave(64, 1)
    packed = (signed[:, ::2] & 15 | (signed[:, 1::2] & 15) << 4).to(torch.uint8).view(torch.int8)
    return {
        "_weight_qdata": packed,
        "_weight_scale": scale.T.contiguous(),
        "_weight_zero_point": middle.T.contiguous(),
    }, values.float()


def torchao_int8(group: int | None) -> Writer:
    def write(weight: torch.Tensor) -> Written:
        q, scale, zero, values = quantized(weight, 8, group or weight.shape[1])
        return {
            "_weight_qdata": torch.from_numpy((q - 128).astype(np.int8)),
            "_weight_scale": scale,
            "_weight_zero_point": torch.from_numpy((zero - 128).astype(np.int8)),
        }, values

    return write


def float8(names: tuple[str, str]) -> Writer:
    def write(weight: torch.Tensor) -> Written:
        scale = weight.abs().amax(1, keepdim=True) / 448
        scale = 2.0 ** torch.ceil(torch.log2(scale))
        codes = (weight / scale).to(torch.float8_e4m3fn)
        return {names[0]: codes, names[1]: scale}, codes.float() * scale

    return write


def awq(**keys: Any) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "zero_point": True} | keys


def round_config(packing: str, bits: int = 4, **keys: Any) -> dict[str, Any]:
    config = {"quant_method": "auto-round", "bits": bits, "group_size": 32, "sym": False}
    return config | {"data_type": "int", "packing_format": packing} | keys


def quark(order: str = "reorder", **weight: Any) -> dict[str, Any]:
    layer = {"weight": {"is_dynamic": False, "ch_axis": 1, "symmetric": False} | weight}
    layer |= {"input_tensors": None, "bias": None}
    export = {"pack_method": order, "weight_format": "real_quantized"}
    return {"quant_method": "quark", "global_quant_config": layer, "export": export}


def torchao(name: str, **data: Any) -> dict[str, Any]:
    kind = {"_type": name, "_version": 2, "_data": data}
    return {"quant_method": "torchao", "quant_type": {"default": kind}}


_OF_GROUPS = {"qscheme": "per_group", "group_size": 32}
_MX = _OF_GROUPS | {"scale_format": "e8m0"}
_ROUND_FLOATS = {"data_type": "mx_fp", "act_bits": 4}

PACKINGS = {
    "awq gemv": Format(awq(version="gemv", group_size=32), awq_gemv(32)),
    "awq gemv, groups of 64": Format(awq(version="GEMV", group_size=64), awq_gemv(64)),
    "awq gemv, groups of 96": Format(awq(version="gemv", group_size=96), awq_gemv(96)),
    "awq gemv_fast": Format(awq(version="gemv_fast", group_size=64), awq_gemv_fast),
    "llm-awq": Format(awq(backend="llm-awq", group_size=64), llm_awq),
    "awq marlin": Format(awq(version="marlin", group_size=64), marlin(64, ("qweight", "scales"))),
    "gptq marlin": Format(
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "marlin"},
        marlin(32, ("B", "s")),
    ),
    "gptq marlin of whole rows": Format(
        {"quant_method": "gptq", "bits": 4, "group_size": -1, "is_marlin_format": True},
        marlin(None, ("B", "s")),
    ),
    "mxfp8 of mlx": Format(
        {"group_size": 32, "bits": 8, "mode": "mxfp8"}, mlx_mxfp8, "quantization"
    ),
    "metal": Format({"quant_method": "metal", "bits": 8, "group_size": 64}, metal),
    "e5m2": Format({"quant_method": "fp8", "fmt": "e5m2"}, float8_e5m2),
    **{
        f"auto-round {bits} bits": Format(round_config("auto_round", bits), auto_round(bits))
        for bits in (2, 3, 4, 5, 6, 7, 8)
    },
    "auto-round of gptq": Format(round_config("auto_round:auto_gptq"), gptq(4)),
    "auto-round of gptqmodel": Format(round_config("auto_round:gptqmodel"), auto_round(4)),
    "auto-round with other modules": Format(
        round_config("auto_round", extra_config={"lm_head": {"bits": 4}, ".*a": {"bits": 8}}),
        auto_round(8),
    ),
    "auto-round before 0.5": Format(
        {
            "quant_method": "intel/auto-round",
            "bits": 4,
            "group_size": 32,
            "sym": False,
            "backend": "auto_round:exllamav2",
        },
        auto_round(4),
    ),
    "auto-round of awq": Format(round_config("auto_round:auto_awq"), auto_round(4, awq=True)),
    "auto-round of awq, 6 bits": Format(
        round_config("auto_round:auto_awq", 6), auto_round(6, awq=True)
    ),
    "auto-round of mxfp4": Format(
        round_config("auto_round:llm_compressor", **_ROUND_FLOATS), mxfp4_ct
    ),
    "auto-round of mxfp8": Format(
        round_config("auto_round:llm_compressor", 8, **_ROUND_FLOATS), mxfp8
    ),
    "auto-round of nvfp4": Format(
        round_config("auto_round:llm_compressor", data_type="nv_fp", act_bits=4, group_size=16),
        nvfp4_ct,
    ),
    "auto-round of fp8": Format(
        round_config("auto_round:fp8_static", 8, data_type="fp", group_size=-1, act_bits=8),
        float8(("weight", "weight_scale")),
    ),
    "quark int4": Format(quark(dtype="int4", **_OF_GROUPS), quark_int4(True, AWQ_ORDER)),
    "quark int4 in order": Format(quark("order", dtype="int4", **_OF_GROUPS), quark_int4(True)),
    "quark uint4": Format(quark(dtype="uint4", **_OF_GROUPS), quark_int4(False, AWQ_ORDER)),
    "quark uint4 in order": Format(quark("order", dtype="uint4", **_OF_GROUPS), quark_int4(False)),
    "quark int8 in groups": Format(
        quark(dtype="int8", qscheme="per_group", group_size=64), quark_int8
    ),
    "quark int8": Format(quark(dtype="int8", qscheme="per_tensor"), int_tensor),
    "quark mxfp4": Format(quark(dtype="fp4", **_MX), mxfp4_modelopt),
    "quark mxfp6": Format(quark(dtype="fp6_e2m3", **_MX), quark_mxfp6),
    "quark fp8": Format(
        quark(dtype="fp8_e4m3", qscheme="per_channel"), float8(("weight", "weight_scale"))
    ),
    "torchao int4": Format(
        torchao("Int4WeightOnlyConfig", group_size=64, int4_packing_format="plain"), torchao_int4
    ),
    "torchao int8": Format(torchao("Int8WeightOnlyConfig"), torchao_int8(None)),
    "torchao int8 in groups": Format(torchao("IntxWeightOnlyConfig"), torchao_int8(32)),
    "torchao of modules": Format(
        torchao(
            "FqnToConfig",
            fqn_to_config={
                "a": {"_type": "Int8WeightOnlyConfig", "_data": {}},
                "b": {"_type": "Float8WeightOnlyConfig", "_data": {}},
                "c": None,
            },
        ),
        torchao_int8(None),
    ),
    "torchao float8": Format(
        torchao("Float8DynamicActivationFloat8WeightConfig", granularity=[{"_type": "PerRow"}]),
        float8(("_weight_qdata", "_weight_scale")),
    ),
}
"""Formats beside `FORMATS`. The rows of a matrix must be a multiple of 64, for Marlin."""
