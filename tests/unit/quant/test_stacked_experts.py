"""Stacks of experts in 8-bit and 4-bit floats are read as gate, up and down of each expert, in any
order of their dimensions and with the names of scales of each tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.base.errors import ModelError
from penstock.kernels.weights import Affine, Dense, Float8
from penstock.models.checkpoint.gpt_oss_checkpoint import GateUpOrder, GptOssCheckpoint
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize
from penstock.quant.safetensors.float8_checkpoint import Float8Storage
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint
from tests.support.checkpoints.quantized_folders import nvfp4_modelopt

EXPERTS, WIDTH, INNER = 3, 128, 256
LAYER = "model.layers.0."
FUSED = {"gate_up_proj": (2 * INNER, WIDTH), "down_proj": (WIDTH, INNER)}
ORDERS: tuple[GateUpOrder, ...] = ("halves", "alternating")
Tensors = dict[str, torch.Tensor]


def weights(seed: int = 0) -> Tensors:
    """Return the plain stacks [E, N, C]."""
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn((EXPERTS, *shape), generator=random) for name, shape in FUSED.items()}


def opened(
    folder: Path, config: dict[str, Any], held: Tensors, storage: Float8Storage, order: GateUpOrder
) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    named = {f"{LAYER}mlp.experts.{name}": one.contiguous() for name, one in held.items()}
    save_file(named, folder / "model.safetensors")
    return GptOssCheckpoint(open_checkpoint(folder, storage), WIDTH, order)


def check(checkpoint: Checkpoint, meant: Tensors, order: GateUpOrder, kind: type) -> None:
    """Compare with the values of the stacks [E, N, C]."""
    gate_up = meant["gate_up_proj"]
    halves = {"gate_proj": gate_up[:, :INNER], "up_proj": gate_up[:, INNER:]}
    if order == "alternating":
        halves = {"gate_proj": gate_up[:, 0::2], "up_proj": gate_up[:, 1::2]}
    for name, expected in (halves | {"down_proj": meant["down_proj"]}).items():
        full = f"{LAYER}mlp.experts.{name}.weight"
        assert checkpoint.tensors[full].shape == expected.shape
        stack = checkpoint.stack(full)
        assert len(stack) == EXPERTS and all(isinstance(one, kind) for one in stack)
        for one, values in zip(stack, expected, strict=True):
            np.testing.assert_array_equal(dequantize(one), values.numpy())
    assert len(checkpoint.tensors) == 3


Scales = Literal["blocks", "matrix", "rows"]


def float8(weight: torch.Tensor, scales: Scales) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes, scales that are powers of two, and values of a stack [E, N, C]."""
    height, width = {
        "blocks": (128, 128),
        "matrix": tuple(weight.shape[1:]),
        "rows": (1, weight.shape[2]),
    }[scales]
    parts = weight.unflatten(2, (-1, width)).unflatten(1, (-1, height))
    scale = 2.0 ** torch.ceil(torch.log2(parts.abs().amax((2, 4)) / 448))
    spread = scale.repeat_interleave(height, 1).repeat_interleave(width, 2)
    codes = (weight / spread).to(torch.float8_e4m3fn)
    return codes, scale, codes.float() * spread


@pytest.mark.parametrize("storage", ["bf16", "float8"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scales", ["blocks", "matrix", "rows"])
def test_8_bit_floats_as_transformers_saves_them(
    tmp_path: Path, scales: Scales, order: GateUpOrder, storage: Float8Storage
) -> None:
    held, meant = {}, {}
    for name, weight in weights().items():
        held[name], held[f"{name}_scale_inv"], meant[name] = float8(weight, scales)
    config: dict[str, Any] = {"quant_method": "fp8"}
    if scales == "blocks":
        config |= {"weight_block_size": [128, 128]}
    kind = Dense if storage == "bf16" else Float8
    check(opened(tmp_path, config, held, storage, order), meant, order, kind)


@pytest.mark.parametrize("storage", ["bf16", "float8"])
@pytest.mark.parametrize("scales", ["blocks", "matrix"])
def test_transposed_8_bit_floats(tmp_path: Path, scales: Scales, storage: Float8Storage) -> None:
    held, meant = {}, {}
    for name, weight in weights().items():
        codes, scale, meant[name] = float8(weight, scales)
        held |= {name: codes.mT, f"{name}_scale_inv": scale.mT}
    config: dict[str, Any] = {"quant_method": "fp8"}
    if scales == "blocks":
        config |= {"weight_block_size": [128, 128]}
    kind = Dense if storage == "bf16" else Float8
    check(opened(tmp_path, config, held, storage, "halves"), meant, "halves", kind)


@pytest.mark.parametrize("storage", ["bf16", "float8"])
def test_8_bit_floats_as_fbgemm_saves_them(tmp_path: Path, storage: Float8Storage) -> None:
    """Matrices are transposed, with a scale per output in two orders of dimensions."""
    held, meant = {}, {}
    for name, weight in weights().items():
        codes, scale, meant[name] = float8(weight, "rows")
        held[name] = codes.mT
        held[f"{name}_scale"] = scale.mT if name == "gate_up_proj" else scale
    config = {"quant_method": "fbgemm_fp8"}
    kind = Dense if storage == "bf16" else Float8
    checkpoint = opened(tmp_path, config, held, storage, "halves")
    check(checkpoint, meant, "halves", kind)
    sample = checkpoint.layout_sample(f"{LAYER}mlp.experts.down_proj.weight")
    assert isinstance(sample, kind)


def nvfp4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    each = [nvfp4_modelopt(one) for one in weight]
    tensors = {name: torch.stack([one[0][name] for one in each]) for name in each[0][0]}
    return tensors, torch.stack([one[1] for one in each])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_nvfp4_as_modelopt_saves_it(tmp_path: Path, order: GateUpOrder, transposed: bool) -> None:
    held, meant = {}, {}
    for name, weight in weights().items():
        parts, meant[name] = nvfp4(weight)
        if transposed:
            parts |= {last: parts[last].mT for last in ("weight", "weight_scale")}
        held[name] = parts.pop("weight")
        held |= {f"{name}_{last}": part for last, part in parts.items()}
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    check(opened(tmp_path, config, held, "float8", order), meant, order, Affine)


def test_gates_and_ups_may_have_scales_of_their_own(tmp_path: Path) -> None:
    held, meant = {}, {}
    for name, weight in weights().items():
        rows = (INNER, INNER) if name == "gate_up_proj" else (WIDTH,)
        halves = [nvfp4(part * 3**index) for index, part in enumerate(weight.split(rows, 1))]
        meant[name] = torch.cat([values for _, values in halves], 1)
        held[name] = torch.cat([parts["weight"] for parts, _ in halves], 1)
        held[f"{name}_weight_scale"] = torch.cat([one["weight_scale"] for one, _ in halves], 1)
        second = torch.stack([one["weight_scale_2"] for one, _ in halves], 1)
        held[f"{name}_weight_scale_2"] = second
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    check(opened(tmp_path, config, held, "float8", "halves"), meant, "halves", Affine)


def test_int8_as_torchao_saves_it(tmp_path: Path) -> None:
    held, meant = {}, {}
    for name, weight in weights().items():
        scale = 2.0 ** torch.ceil(torch.log2(weight.abs().amax(2, keepdim=True) / 127))
        q = (weight / scale).round().to(torch.int8)
        held |= {f"_{name}_qdata": q, f"_{name}_scale": scale}
        meant[name] = q * scale
    kind = {"_type": "Int8WeightOnlyConfig", "_data": {}}
    config = {"quant_method": "torchao", "quant_type": {"default": kind}}
    check(opened(tmp_path, config, held, "float8", "halves"), meant, "halves", Affine)


def test_square_stacks_have_the_order_of_the_other_stack(tmp_path: Path) -> None:
    """A model as wide as its experts, such as gpt-oss: the shape of down tells nothing."""
    random = torch.Generator().manual_seed(0)
    gate_up = torch.randn((2, 2 * WIDTH, WIDTH), generator=random)
    down = torch.randn((2, WIDTH, WIDTH), generator=random)
    (tmp_path / "config.json").write_text("{}")
    for transposed in (False, True):
        held = {"gate_up_proj": gate_up, "down_proj": down}
        named = {
            f"{LAYER}mlp.experts.{name}": (one.mT if transposed else one).contiguous()
            for name, one in held.items()
        }
        save_file(named, tmp_path / "model.safetensors")
        checkpoint = GptOssCheckpoint(open_checkpoint(tmp_path, "bf16"), WIDTH, "halves")
        stack = checkpoint.stack(f"{LAYER}mlp.experts.down_proj.weight")
        np.testing.assert_array_equal(dequantize(stack[1]), down[1].numpy())


FAULTS: list[tuple[str, torch.Tensor | None, str]] = [
    ("gate_up_proj_scale_inv", None, r"weight_scale_inv or .*weight_scale is missing"),
    ("gate_up_proj_scale_inv", torch.ones(EXPERTS, 4, 2), r"expected \(3, 4, 1\)"),
    ("gate_up_proj_scale_inv", torch.ones(EXPERTS - 1, 4, 1), r"shape \(2, 4, 1\), expected"),
    ("gate_up_proj_scale_inv", torch.full((EXPERTS, 4, 1), np.nan), "not all numbers are finite"),
    ("down_proj_scale_inv", torch.full((EXPERTS, 1, 2), np.inf), "not all numbers are finite"),
]


@pytest.mark.parametrize(("name", "tensor", "message"), FAULTS)
def test_faults_are_named(
    tmp_path: Path, name: str, tensor: torch.Tensor | None, message: str
) -> None:
    held = {}
    for one, weight in weights().items():
        held[one], held[f"{one}_scale_inv"], _ = float8(weight, "blocks")
    held.pop(name)
    if tensor is not None:
        held[name] = tensor
    config = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    with pytest.raises(ModelError, match=message):
        checkpoint = opened(tmp_path, config, held, "bf16", "halves")
        for part in ("gate", "down"):
            checkpoint.stack(f"{LAYER}mlp.experts.{part}_proj.weight")
