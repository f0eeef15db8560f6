"""Calibrated scales of an FP8 KV cache in folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from penstock.base.errors import ModelError
from penstock.quant.safetensors.cache_scales import read_cache_scales


def folder(tmp_path: Path, held: dict[str, torch.Tensor], scheme: Any = None) -> Path:
    config = {"quantization_config": {"quant_method": "x", "kv_cache_scheme": scheme}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": torch.ones(4), **held}, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("scheme", [None, {"num_bits": 8, "type": "float", "strategy": "tensor"}])
def test_scales_are_found_under_every_name_in_use(tmp_path: Path, scheme: Any) -> None:
    held = {
        "model.layers.0.self_attn.k_scale": torch.tensor(0.5),  # compressed-tensors
        "model.layers.0.self_attn.v_scale": torch.tensor([0.25]),
        "model.layers.11.self_attn.k_proj.k_scale": torch.tensor([2.0], dtype=torch.bfloat16),
        "model.language_model.layers.3.self_attn.v_proj.v_scale": torch.ones(4, 1, 1),
        "model.layers.0.self_attn.q_scale": torch.tensor(1.0),
        "vision_tower.encoder.layers.0.self_attn.k_scale": torch.tensor(9.0),
    }
    found = read_cache_scales(folder(tmp_path, held, scheme))
    assert {key: value.tolist() for key, value in found.items()} == {
        (0, "k"): [0.5],
        (0, "v"): [0.25],
        (11, "k"): [2.0],
        (3, "v"): [1.0] * 4,
    }


def test_scales_of_another_type_are_not_read(tmp_path: Path) -> None:
    held = {"model.layers.0.self_attn.k_scale": torch.tensor(0.5)}
    assert read_cache_scales(folder(tmp_path, held, {"num_bits": 8, "type": "int"})) == {}


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_not_positive_and_finite_is_refused(tmp_path: Path, scale: float) -> None:
    held = {"model.layers.0.self_attn.k_scale": torch.tensor(scale)}
    with pytest.raises(ModelError, match=r"layers.0.self_attn.k_scale must be positive"):
        read_cache_scales(folder(tmp_path, held))
