"""Hugging Face folders of 8-bit floats, made from float folders with torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file

Form = Literal["fp8-block", "fp8-tensor", "channel", "tensor", "block", "group"]
Tensors = dict[str, torch.Tensor]

LARGEST = 448.0
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "gate_proj", "up_proj")
_PROJECTIONS += ("gate_up_proj", "down_proj")


def quantization_config(form: Form) -> dict[str, Any]:
    """Return the `quantization_config` that quantization tools write."""
    if form == "fp8-block":
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head"],
        }
    if form == "fp8-tensor":
        return {
            "quant_method": "fp8",
            "activation_scheme": "static",
            "ignored_layers": ["lm_head"],
        }
    weights: dict[str, Any] = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "dynamic": False,
        "strategy": form,
        "group_size": 128 if form == "group" else None,
        "block_structure": [128, 128] if form == "block" else None,
        "observer": "minmax",
    }
    activations = {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}
    group = {"weights": weights, "input_activations": activations, "targets": ["Linear"]}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "transform_config": {},
        "sparsity_config": {},
    }


def quantized(weight: torch.Tensor, form: Form) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the codes of a matrix, its scales in the shape of the form, and the float32 values."""
    rows, columns = weight.shape
    block = {
        "fp8-block": (128, 128),
        "block": (128, 128),
        "group": (1, 128),
        "channel": (1, columns),
    }.get(form, (rows, columns))
    grid = [-(-size // step) for size, step in zip(weight.shape, block, strict=True)]
    scale = torch.ones(grid)
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    meant = torch.empty(weight.shape)
    for row in range(grid[0]):
        for column in range(grid[1]):
            tile = (
                slice(row * block[0], (row + 1) * block[0]),
                slice(column * block[1], (column + 1) * block[1]),
            )
            scale[row, column] = weight[tile].float().abs().max() / LARGEST
            codes[tile] = (weight[tile].float() / scale[row, column]).to(torch.float8_e4m3fn)
            meant[tile] = codes[tile].float() * scale[row, column]
    return codes, scale.reshape(()) if form == "fp8-tensor" else scale, meant


def write_float8(
    source: Path, folder: Path, form: Form, dtype: torch.dtype = torch.float32
) -> Tensors:
    """Write the model in `source` to `folder` with its projections in 8 bits, and return the
    float32 values of its tensors. `dtype`: of the other tensors."""
    plain = load_file(source / "model.safetensors")
    tensors: Tensors = {}
    meant: Tensors = {}
    for name, tensor in plain.items():
        module = name.removesuffix(".weight")
        if not module.endswith(_PROJECTIONS):
            tensors[name] = tensor.to(dtype)
            meant[name] = tensors[name].float()
            continue
        tensors[name], scale, meant[name] = quantized(tensor, form)
        tensors[f"{module}.weight_scale{'_inv' if form == 'fp8-block' else ''}"] = scale
        if form == "fp8-tensor":
            tensors[f"{module}.input_scale"] = torch.tensor(0.5)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = quantization_config(form)
    (folder / "config.json").write_text(json.dumps(config))
    return meant
