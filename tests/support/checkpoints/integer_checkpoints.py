"""Hugging Face folders of integers in groups, written number by number from the descriptions of the
formats."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Name = Literal["gptq", "gptq_v2", "awq", "packed", "int8", "mlx"]

_PROJECTION = re.compile(r".*\.(q|k|v|qkv|o|gate|up|gate_up|down)_proj\.weight|.*\.w[123]\.weight")


@dataclass(frozen=True)
class Form:
    """The quantization of a folder. `group` None: whole rows."""

    name: Name
    bits: Literal[4, 8] = 4
    group: int | None = 32
    symmetric: bool = False
    dtype: torch.dtype = torch.float16


FORMS = {
    "gptq": Form("gptq"),
    "gptq 8 bits": Form("gptq", 8, 64),
    "gptq symmetric": Form("gptq", symmetric=True),
    "gptq whole rows": Form("gptq", group=None),
    "gptq whole rows, symmetric": Form("gptq", 8, None, True),
    "gptq groups of 96": Form("gptq", group=96),
    "gptq in bfloat16": Form("gptq", symmetric=True, dtype=torch.bfloat16),
    "gptq_v2": Form("gptq_v2", group=64),
    "awq": Form("awq"),
    "awq groups of 64": Form("awq", group=64),
    "awq whole rows": Form("awq", group=None),
    "packed": Form("packed", dtype=torch.bfloat16),
    "packed symmetric": Form("packed", symmetric=True, dtype=torch.bfloat16),
    "packed 8 bits": Form("packed", 8, None),
    "packed 8 bits symmetric": Form("packed", 8, 64, True),
    "int8": Form("int8", 8, None, True),
    "int8 asymmetric": Form("int8", 8, None, dtype=torch.bfloat16),
    "mlx": Form("mlx", dtype=torch.bfloat16),
    "mlx 8 bits": Form("mlx", 8, 64),
    "mlx in float32": Form("mlx", 4, 64, dtype=torch.float32),
}


def quantization(form: Form) -> dict[str, Any]:
    """Return the keys of config.json that quantization tools write."""
    size = -1 if form.group is None else form.group
    if form.name in ("gptq", "gptq_v2"):
        of_method: dict[str, Any] = {"sym": form.symmetric, "desc_act": False}
        if form.name == "gptq_v2":
            of_method["checkpoint_format"] = "gptq_v2"
        return _named({"quant_method": "gptq", "bits": form.bits, "group_size": size} | of_method)
    if form.name == "awq":
        of_method = {"version": "gemm", "zero_point": True, "modules_to_not_convert": None}
        return _named({"quant_method": "awq", "bits": form.bits, "group_size": size} | of_method)
    if form.name == "mlx":
        groups = {"group_size": form.group, "bits": form.bits}
        return {"quantization": groups, "quantization_config": groups}
    weights = {
        "num_bits": form.bits,
        "type": "int",
        "symmetric": form.symmetric,
        "strategy": "channel" if form.group is None else "group",
        "group_size": form.group,
        "actorder": None,
    }
    group: dict[str, Any] = {"weights": weights, "targets": ["Linear"], "input_activations": None}
    if form.name == "int8":
        group["input_activations"] = {"num_bits": 8, "type": "int", "dynamic": True}
    layout = "pack-quantized" if form.name == "packed" else "int-quantized"
    return _named(
        {
            "quant_method": "compressed-tensors",
            "format": layout,
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
        }
    )


def _named(config: dict[str, Any]) -> dict[str, Any]:
    return {"quantization_config": config}


def words(numbers: np.ndarray, bits: int, order: tuple[int, ...] = ()) -> np.ndarray:
    """Pack [N, C] unsigned numbers into [N, ceil(C * bits / 32)] words. `order`: the column of each
    place in a word, the lowest place first."""
    each = 32 // bits
    rows, columns = numbers.shape
    out = np.zeros((rows, -(-columns // each)), np.uint32)
    for word in range(out.shape[1]):
        for place in range(each):
            column = word * each + (order[place] if order else place)
            if column < columns:
                out[:, word] |= numbers[:, column].astype(np.uint32) << np.uint32(bits * place)
    return out


@dataclass(frozen=True)
class Quantized:
    """A quantized matrix: q [N, C], scale and zero [N, G] (for MLX minimum instead of zero), and
    their float32 values."""

    q: np.ndarray
    scale: torch.Tensor
    zero: np.ndarray
    minimum: torch.Tensor
    meant: np.ndarray


def quantize(weight: torch.Tensor, form: Form) -> Quantized:
    columns = weight.shape[1]
    group = form.group or columns
    top = 2**form.bits - 1
    starts = range(0, columns, group)
    pieces = [weight[:, at : at + group].double() for at in starts]
    low = torch.stack([piece.amin(1) for piece in pieces], 1).clamp(max=0)
    high = torch.stack([piece.amax(1) for piece in pieces], 1).clamp(min=0)
    if form.symmetric:
        high = torch.maximum(high, -low)
        low = -high
    scale = ((high - low) / top).to(form.dtype)
    real = scale.double().numpy()
    minimum = low.to(form.dtype)
    zero = np.full(real.shape, (top + 1) // 2)
    if not form.symmetric:
        zero = np.clip(np.rint(-low.numpy() / real), 0, top).astype(int)
    at = np.arange(columns) // group
    offset = minimum.double().numpy() if form.name == "mlx" else -zero * real
    q = np.clip(np.rint((weight.double().numpy() - offset[:, at]) / real[:, at]), 0, top)
    meant = q * real[:, at] + offset[:, at]
    return Quantized(q.astype(int), scale, zero, minimum, meant.astype(np.float32))


def stored(module: str, of: Quantized, form: Form) -> Tensors:
    """Return the tensors of a matrix."""
    return {f"{module}.{last}": value.contiguous() for last, value in _STORED[form.name](of, form)}


def _gptq(of: Quantized, form: Form) -> list[tuple[str, torch.Tensor]]:
    packed = words(of.zero.T, form.bits)
    if form.name == "gptq":  # subtracted from words, so that a zero point of 0 borrows
        packed = packed - np.uint32(0x11111111 if form.bits == 4 else 0x01010101)
    columns = of.q.shape[1]
    order = np.arange(columns) // (form.group or columns)
    return [
        ("qweight", _int32(words(of.q, form.bits).T)),
        ("qzeros", _int32(packed)),
        ("scales", of.scale.T),
        ("g_idx", torch.from_numpy(order.astype(np.int32))),
    ]


def _awq(of: Quantized, form: Form) -> list[tuple[str, torch.Tensor]]:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return [
        ("qweight", _int32(words(of.q.T, 4, order))),
        ("qzeros", _int32(words(of.zero.T, 4, order))),
        ("scales", of.scale.T),
    ]


def _packed(of: Quantized, form: Form) -> list[tuple[str, torch.Tensor]]:
    tensors = [
        ("weight_packed", _int32(words(of.q, form.bits))),
        ("weight_scale", of.scale),
        ("weight_shape", torch.tensor(of.q.shape)),
    ]
    if not form.symmetric:
        tensors.append(("weight_zero_point", _int32(words(of.zero.T, form.bits).T)))
    return tensors


def _int8(of: Quantized, form: Form) -> list[tuple[str, torch.Tensor]]:
    tensors = [("weight", _signed(of.q)), ("weight_scale", of.scale)]
    return tensors if form.symmetric else [*tensors, ("weight_zero_point", _signed(of.zero))]


def _mlx(of: Quantized, form: Form) -> list[tuple[str, torch.Tensor]]:
    packed = torch.from_numpy(words(of.q, form.bits))
    return [("weight", packed), ("scales", of.scale), ("biases", of.minimum)]


def _int32(packed: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(packed).view(np.int32))


def _signed(numbers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((numbers - 128).astype(np.int8))


_STORED: dict[Name, Callable[[Quantized, Form], list[tuple[str, torch.Tensor]]]] = {
    "gptq": _gptq,
    "gptq_v2": _gptq,
    "awq": _awq,
    "packed": _packed,
    "int8": _int8,
    "mlx": _mlx,
}


def write_integers(source: Path, folder: Path, form: Form, more: str = "") -> Tensors:
    """Write the model in `source` to `folder` with its projections, and tensors that match `more`,
    in integers; return the float32 values of its tensors. For MLX the experts of a layer are
    stacked."""
    plain = load_file(source / "model.safetensors")
    if form.name == "mlx":
        plain = _stacked(plain)
    tensors: Tensors = {}
    meant: Tensors = {}
    for name, tensor in plain.items():
        if not (_PROJECTION.fullmatch(name) or (more and re.fullmatch(more, name))):
            tensors[name] = meant[name] = tensor
            continue
        module = name.removesuffix(".weight")
        each = [quantize(one, form) for one in tensor.reshape(-1, *tensor.shape[-2:])]
        parts = [stored(module, one, form) for one in each]
        tensors |= {
            last: torch.stack([part[last] for part in parts])
            if tensor.ndim == 3
            else parts[0][last]
            for last in parts[0]
        }
        meant[name] = torch.stack([torch.from_numpy(one.meant) for one in each])
        meant[name] = meant[name].reshape(tensor.shape)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text()) | quantization(form)
    (folder / "config.json").write_text(json.dumps(config))
    return meant


_EXPERT = re.compile(r"(.*)experts\.(\d+)\.(\w+)\.weight")
_MLX_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def _stacked(plain: Tensors) -> Tensors:
    """Stack the experts of a layer, as MLX does."""
    tensors: Tensors = {}
    lists: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in plain.items():
        found = _EXPERT.fullmatch(name)
        if found is None:
            tensors[name] = tensor
            continue
        prefix, number, own = found.groups()
        stack = f"{prefix}switch_mlp.{_MLX_NAMES.get(own, own)}.weight"
        lists.setdefault(stack, {})[int(number)] = tensor
    for name, own in lists.items():
        tensors[name] = torch.stack([own[number] for number in sorted(own)])
    return tensors


def unstacked(meant: Tensors, names: list[str]) -> Tensors:
    """Return the tensors `names`, unstacked, from the result of `write_integers`."""
    tensors: Tensors = {}
    for name in names:
        found = _EXPERT.fullmatch(name)
        if found is None or name in meant:
            tensors[name] = meant[name]
            continue
        prefix, number, own = found.groups()
        stack = f"{prefix}switch_mlp.{_MLX_NAMES.get(own, own)}.weight"
        tensors[name] = meant[stack][int(number)]
    return tensors
