"""Hugging Face folders of NVFP4, MXFP4 to MXFP8, HQQ, bitsandbytes and integers of unusual widths,
written number by number from the descriptions of the formats."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Written = tuple[Tensors, torch.Tensor]
"""The tensors of a matrix by the last component of their names, and its float32 values."""

_PROJECTION = re.compile(r".*\.(q|k|v|o|gate|up|down)_proj\.weight")
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E2M3 = torch.tensor(
    [mantissa / 8 for mantissa in range(8)]
    + [(1 + mantissa / 8) * 2.0**exponent for exponent in range(3) for mantissa in range(8)]
)


@dataclass(frozen=True)
class Format:
    """A format: its configuration, the key of config.json that has it, and the function that
    quantizes a matrix."""

    config: dict[str, Any]
    write: Callable[[torch.Tensor], Written]
    key: str = "quantization_config"


def _codes(weight: torch.Tensor, scale: torch.Tensor, table: torch.Tensor, group: int) -> Written:
    """Return the codes of the nearest values of a float type, a sign above the magnitude's index,
    and the values."""
    spread = scale.repeat_interleave(group, 1)
    wanted = (weight / spread).abs()
    index = (wanted[..., None] - table).abs().argmin(-1)
    negative = weight < 0
    values = torch.where(negative, -table[index], table[index]) * spread
    return {"codes": (index + negative * len(table)).to(torch.uint8)}, values


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    return codes[:, ::2] | codes[:, 1::2] << 4


def _largest(weight: torch.Tensor, group: int) -> torch.Tensor:
    return weight.unflatten(1, (-1, group)).abs().amax(2)


def _nvfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the packed codes, the scales, the global scale that divides them, and the values."""
    factor = torch.tensor([448 * 6 / float(weight.abs().max())])
    scale = (_largest(weight, 16) / 6 * factor).to(torch.float8_e4m3fn)
    real = scale.float() / factor
    codes, values = _codes(weight, real, E2M1, 16)
    return _pairs(codes["codes"]), scale, factor, values


def nvfp4_ct(weight: torch.Tensor) -> Written:
    packed, scale, factor, values = _nvfp4(weight)
    return {
        "weight_packed": packed,
        "weight_scale": scale,
        "weight_global_scale": factor,
        "input_global_scale": torch.ones(1),
    }, values


def nvfp4_modelopt(weight: torch.Tensor) -> Written:
    packed, scale, factor, _ = _nvfp4(weight)
    real = scale.float() * (1 / factor)
    index = torch.stack((packed & 15, packed >> 4), -1).flatten(1).long()
    signed = torch.cat((E2M1, -E2M1))
    return {
        "weight": packed,
        "weight_scale": scale,
        "weight_scale_2": (1 / factor)[0],
        "input_scale": torch.tensor(0.5),
    }, signed[index] * real.repeat_interleave(16, 1)


def _exponents(weight: torch.Tensor, largest: float) -> torch.Tensor:
    """Return the exponents of powers of two that keep each group of 32 below `largest`."""
    return torch.ceil(torch.log2(_largest(weight, 32) / largest)).clamp(-100, 100)


def _mx(
    weight: torch.Tensor, table: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    exponents = _exponents(weight, float(table[-1]))
    codes, values = _codes(weight, 2.0**exponents, table, 32)
    return codes["codes"], (exponents + 127).to(torch.uint8), values


def mxfp4_ct(weight: torch.Tensor) -> Written:
    codes, scale, values = _mx(weight, E2M1)
    return {"weight_packed": _pairs(codes), "weight_scale": scale}, values


def mxfp4_modelopt(weight: torch.Tensor) -> Written:
    codes, scale, values = _mx(weight, E2M1)
    return {"weight": _pairs(codes), "weight_scale": scale}, values


def mlx_mxfp4(weight: torch.Tensor) -> Written:
    codes, scale, values = _mx(weight, E2M1)
    return {"weight": _pairs(codes).view(torch.uint32), "scales": scale}, values


def mlx_nvfp4(weight: torch.Tensor) -> Written:
    scale = (_largest(weight, 16) / 6).to(torch.float8_e4m3fn)
    codes, values = _codes(weight, scale.float(), E2M1, 16)
    packed = _pairs(codes["codes"]).view(torch.uint32)
    return {"weight": packed, "scales": scale.view(torch.uint8)}, values


def mxfp6_ct(weight: torch.Tensor) -> Written:
    codes, scale, values = _mx(weight, E2M3)
    bits = np.unpackbits(codes.numpy()[..., None], axis=-1, bitorder="little")[..., :6]
    packed = np.packbits(bits.reshape(len(codes), -1), axis=1, bitorder="little")
    return {"weight_packed": torch.from_numpy(packed), "weight_scale": scale}, values


def mxfp8(weight: torch.Tensor) -> Written:
    exponents = _exponents(weight, 448.0)
    spread = (2.0**exponents).repeat_interleave(32, 1)
    codes = (weight / spread).to(torch.float8_e4m3fn)
    scale = (exponents + 127).to(torch.uint8)
    return {"weight": codes, "weight_scale": scale}, codes.float() * spread


def hqq(
    bits: int, axis: int, dtype: torch.dtype = torch.float16
) -> Callable[[torch.Tensor], Written]:
    """Return the writer of HQQ in groups of 64 columns (axis 1) or of 16 rows (axis 0)."""

    def write(weight: torch.Tensor) -> Written:
        group, shape = (64, (-1, 64)) if axis else (16, (16, -1))
        lines = weight.reshape(shape).double()
        low, high = lines.amin(axis, keepdim=True), lines.amax(axis, keepdim=True)
        scale = ((high - low) / (2**bits - 1)).to(dtype)
        zero = (-low / scale.double()).to(dtype)
        q = (lines / scale.double() + zero.double()).round().clamp(0, 2**bits - 1)
        values = ((q - zero.double()) * scale.double()).reshape(weight.shape)
        if axis == 0:
            values = values.to(dtype)
        return {
            "W_q": _hqq_packed(q.to(torch.int64), bits),
            "scale": scale,
            "zero": zero,
            "shape": torch.tensor(weight.shape),
            "nbits": torch.tensor(bits, dtype=torch.int32),
            "group_size": torch.tensor(group, dtype=torch.int32),
            "axis": torch.tensor(axis, dtype=torch.int32),
            "packing": torch.tensor(list(b"4bit_u8"), dtype=torch.uint8),
            "compute_dtype": torch.tensor(list(b"torch.float16"), dtype=torch.uint8),
            "channel_wise": torch.tensor(1, dtype=torch.uint8),
        }, values.float()

    return write


def _hqq_packed(q: torch.Tensor, bits: int) -> torch.Tensor:
    each = 10 if bits == 3 else 8 // bits
    rows = -(-len(q) // each)
    padded = torch.zeros(rows * each, q.shape[1], dtype=torch.int64)
    padded[: len(q)] = q
    packed = torch.zeros(rows, q.shape[1], dtype=torch.int64)
    for part in range(each):
        packed |= padded[part * rows : (part + 1) * rows] << (each - 1 - part) * bits
    return packed.to(torch.int32 if bits == 3 else torch.uint8)


TABLE = torch.linspace(-1, 1, 16) ** 3  # any table of 16 floats


def bnb_4bit(dtype: str, nested: bool = False) -> Callable[[torch.Tensor], Written]:
    """Return the writer of 4-bit indices in blocks of 64 numbers."""

    def write(weight: torch.Tensor) -> Written:
        flat = weight.reshape(-1, 64)
        absmax = flat.abs().amax(1)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": dtype}
        state["shape"] = list(weight.shape)
        tensors: Tensors = {"weight.absmax": absmax}
        if nested:
            offset, outer = float(absmax.mean()), torch.linspace(0.5, 1.5, -(-len(absmax) // 256))
            table = torch.linspace(-1, 1, 256)
            block = torch.arange(len(absmax)) // 256
            wanted = ((absmax - offset) / outer[block])[:, None] - table
            codes = wanted.abs().argmin(1)
            absmax = table[codes] * outer[block] + torch.tensor(offset)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            tensors = {
                "weight.absmax": codes.to(torch.uint8),
                "weight.nested_absmax": outer,
                "weight.nested_quant_map": table,
            }
        index = (flat[..., None] / absmax[:, None, None] - TABLE).abs().argmin(-1)
        values = (TABLE[index] * absmax[:, None]).reshape(weight.shape)
        index = index.to(torch.uint8).reshape(-1)
        text = json.dumps(state).encode()
        tensors |= {
            "weight": (index[::2] << 4 | index[1::2])[:, None].contiguous(),
            "weight.quant_map": TABLE,
            "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(text), dtype=torch.uint8),
        }
        return tensors, values.to(getattr(torch, dtype)).float()

    return write


def bnb_int8(weight: torch.Tensor) -> Written:
    largest = weight.abs().amax(1)
    q = (weight * 127 / largest[:, None]).round().to(torch.int8)
    scale = (largest.double() / 127).float()
    values = q.float() * scale[:, None]
    format_ = torch.tensor(0, dtype=torch.uint8)
    return {"weight": q, "SCB": largest, "weight_format": format_}, values


def _stream(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Pack [N, C] integers into [N, C * bits / 32] words, as a stream of bits."""
    each = np.unpackbits(numbers.astype(np.uint8)[..., None], axis=-1, bitorder="little")
    stream = each[..., :bits].reshape(len(numbers), -1)
    stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
    return np.ascontiguousarray(np.packbits(stream, axis=1, bitorder="little")).view("<i4")


def _integers(weight: torch.Tensor, bits: int, group: int) -> tuple[np.ndarray, Any, Any, Any]:
    """Return q, scale, zero and values of integers in groups with zero points."""
    parts = weight.unflatten(1, (-1, group)).double()
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).to(torch.float16)
    zero = (-low / scale.double()).round().clamp(0, 2**bits - 1)
    spread, middle = (one.double().repeat_interleave(group, 1) for one in (scale, zero))
    q = (weight / spread + middle).round().clamp(0, 2**bits - 1)
    return q.numpy().astype(int), scale, zero.numpy().astype(int), ((q - middle) * spread).float()


def gptq(bits: int) -> Callable[[torch.Tensor], Written]:
    def write(weight: torch.Tensor) -> Written:
        q, scale, zero, values = _integers(weight, bits, 32)
        stored = (zero - 1) % 2**bits
        if bits == 2:  # subtracted from whole words
            words = _stream(zero.T, bits).view(np.uint32) - np.uint32(0x55555555)
            zeros = words.view(np.int32)
        else:
            zeros = _stream(stored.T, bits)
        return {
            "qweight": torch.from_numpy(np.ascontiguousarray(_stream(q, bits).T)),
            "qzeros": torch.from_numpy(np.ascontiguousarray(zeros)),
            "scales": scale.T.contiguous(),
            "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // 32,
        }, values

    return write


def gptq_act_order(weight: torch.Tensor) -> Written:
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(0))
    tensors, _ = gptq(4)(weight)
    q, scale, zero, _ = _integers(weight, 4, 32)
    groups = order // 32
    values = (torch.from_numpy(q - zero[:, groups]) * scale.double()[:, groups]).half().float()
    return tensors | {"g_idx": groups.to(torch.int32)}, values


def packed(bits: int) -> Callable[[torch.Tensor], Written]:
    def write(weight: torch.Tensor) -> Written:
        q, scale, zero, values = _integers(weight, bits, 32)
        return {
            "weight_packed": torch.from_numpy(_stream(q, bits)),
            "weight_scale": scale,
            "weight_zero_point": torch.from_numpy(_stream(zero.T, bits).T.copy()),
            "weight_shape": torch.tensor(weight.shape),
        }, values

    return write


def int_tensor(weight: torch.Tensor) -> Written:
    scale = (weight.abs().max() / 127).reshape(1)
    q = (weight / scale).round().to(torch.int8)
    return {"weight": q, "weight_scale": scale}, q.float() * scale


def ct(form: str, **weights: Any) -> dict[str, Any]:
    """Return the config of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": {"symmetric": True} | weights}
    config = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"]}
    return config | {"config_groups": {"group_0": group}}


def _gptq_config(bits: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": 32, "sym": False} | more


_FLOAT4: dict[str, Any] = {"num_bits": 4, "type": "float"}
_NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
_PACKED = {"type": "int", "strategy": "group", "group_size": 32, "symmetric": False}
FORMATS = {
    "nvfp4 of compressed-tensors": Format(
        ct("nvfp4-pack-quantized", **_FLOAT4, strategy="tensor_group", group_size=16), nvfp4_ct
    ),
    "nvfp4 of modelopt": Format(
        {"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4_modelopt
    ),
    "mxfp4 of compressed-tensors": Format(
        ct("mxfp4-pack-quantized", **_FLOAT4, strategy="group", group_size=32), mxfp4_ct
    ),
    "mxfp4 of modelopt": Format(
        {"quant_method": "modelopt", "quant_algo": "MXFP4"}, mxfp4_modelopt
    ),
    "mxfp6": Format(
        ct("mxfp6-pack-quantized", num_bits=6, type="float", strategy="group", group_size=32),
        mxfp6_ct,
    ),
    "mxfp4 of mlx": Format(
        {"group_size": 32, "bits": 4, "mode": "mxfp4"}, mlx_mxfp4, "quantization"
    ),
    "nvfp4 of mlx": Format(
        {"group_size": 16, "bits": 4, "mode": "nvfp4"}, mlx_nvfp4, "quantization"
    ),
    "mxfp8": Format(
        ct("mxfp8-quantized", num_bits=8, type="float", strategy="group", group_size=32), mxfp8
    ),
    "mxfp8 of modelopt": Format({"quant_method": "modelopt", "quant_algo": "MXFP8"}, mxfp8),
    **{
        f"hqq {bits} bits": Format({"quant_method": "hqq"}, hqq(bits, 1))
        for bits in (8, 4, 3, 2, 1)
    },
    "hqq of bfloat16": Format({"quant_method": "hqq"}, hqq(4, 1, torch.bfloat16)),
    "hqq in groups of rows": Format({"quant_method": "hqq"}, hqq(4, 0)),
    "hqq 3 bits in groups of rows": Format({"quant_method": "hqq"}, hqq(3, 0)),
    "nf4": Format(_NF4, bnb_4bit("bfloat16")),
    "nf4 of float16, nested": Format(_NF4, bnb_4bit("float16", nested=True)),
    "bitsandbytes int8": Format({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb_int8),
    "gptq 2 bits": Format(_gptq_config(2), gptq(2)),
    "gptq 3 bits": Format(_gptq_config(3), gptq(3)),
    "gptq of other bits by a rule": Format(_gptq_config(4, dynamic={"+:.*": {"bits": 8}}), gptq(8)),
    "gptq act-order": Format(_gptq_config(4, desc_act=True), gptq_act_order),
    **{
        f"packed {bits} bits": Format(ct("pack-quantized", num_bits=bits, **_PACKED), packed(bits))
        for bits in (1, 2, 3, 5, 6, 7)
    },
    "int8 with one scale": Format(
        ct("int-quantized", num_bits=8, type="int", strategy="tensor"), int_tensor
    ),
    "naive int8": Format(
        ct("naive-quantized", num_bits=8, type="int", strategy="tensor"), int_tensor
    ),
}


def write_folder(source: Path, folder: Path, form: Format) -> Tensors:
    """Write the model in `source` to `folder` with its projections in a format; return the float32
    values of its tensors."""
    tensors: Tensors = {}
    meant: Tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not _PROJECTION.fullmatch(name):
            tensors[name] = meant[name] = tensor
            continue
        module = name.removesuffix(".weight")
        parts, meant[name] = form.write(tensor.float())
        tensors |= {f"{module}.{last}": part.contiguous().clone() for last, part in parts.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {form.key: form.config}))
    return meant
