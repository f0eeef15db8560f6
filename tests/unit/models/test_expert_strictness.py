"""A missing, unexpected or contradictory tensor or key of a mixture of experts is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.base.errors import ModelError
from penstock.models.decoder.lora_targets import linear_numbers, linear_sizes
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model
from tests.support.checkpoints.small_moe import (
    CONFIG,
    EXPERT_FF,
    EXPERTS,
    expert_tensors,
    write_small_experts,
)

EXPERT = "model.layers.2.mlp.experts.3.up_proj.weight"


def load(folder: Path):
    return load_model(ModelFiles("m", "folder", folder), "auto")


def test_the_config_selects_the_layers_with_experts(tmp_path: Path) -> None:
    model = load(write_small_experts(tmp_path))
    assert [layer.experts is None for layer in model.spec.layers] == [False, True, False]
    first, dense, _ = model.weights.layers()
    assert first.gate_up is None and first.experts is not None
    assert first.experts.shape == (EXPERTS, EXPERT_FF, 64)
    assert dense.experts is None and dense.gate_up is not None


def test_experts_are_not_lora_targets(tmp_path: Path) -> None:
    spec = load(write_small_experts(tmp_path)).spec
    assert linear_numbers(spec) == (
        {"qkv": 0, "output": 1},
        {"qkv": 2, "output": 3, "gate_up": 4, "down": 5},
        {"qkv": 6, "output": 7},
    )
    assert [rows for _, rows in linear_sizes(spec)[2:6]] == [(64, 32, 32), (64,), (96, 96), (64,)]
    assert len(linear_sizes(spec)) == 8


@pytest.mark.parametrize("name", [EXPERT, "model.layers.0.mlp.gate.weight"])
def test_a_missing_tensor_of_experts_is_named(tmp_path: Path, name: str) -> None:
    tensors = expert_tensors()
    del tensors[name]
    with pytest.raises(ModelError, match=f"tensor {name} is missing"):
        load(write_small_experts(tmp_path, tensors))


def test_a_misshapen_tensor_of_experts_is_named(tmp_path: Path) -> None:
    tensors = expert_tensors() | {EXPERT: np.ones((64, 32), np.float16)}
    with pytest.raises(ModelError, match=rf"{EXPERT} has shape \(64, 32\), expected \(32, 64\)"):
        load(write_small_experts(tmp_path, tensors))


@pytest.mark.parametrize(
    "name",
    [
        f"model.layers.0.mlp.experts.{EXPERTS}.up_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.mlp.gate.weight",
        "model.layers.0.mlp.shared_expert.up_proj.weight",
    ],
)
def test_an_unexpected_tensor_beside_experts_is_named(tmp_path: Path, name: str) -> None:
    tensors = expert_tensors() | {name: np.ones((4, 4), np.float16)}
    with pytest.raises(ModelError, match=f"unexpected tensor {name}"):
        load(write_small_experts(tmp_path, tensors))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": None}, "num_experts is missing"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok is missing"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
        ({"num_experts": 1 << 40}, "number of experts 1099511627776 is not in 1..1024"),
        ({"num_experts": -1}, "number of experts -1"),
        ({"num_experts_per_tok": 7}, r"experts of a token 7 is not in 1..6"),
        ({"num_experts_per_tok": 0}, r"experts of a token 0"),
        ({"moe_intermediate_size": 1 << 40}, "feed-forward width of an expert"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step 0 is not positive"),
        ({"num_experts": 1024, "num_hidden_layers": 1000}, "more than 65536 experts"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "experts are supported only with silu"),
        ({"num_experts": "many"}, "num_experts"),
    ],
)
def test_an_invalid_mixture_is_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    assert change.keys() <= CONFIG.keys()
    with pytest.raises(ModelError, match=message) as raised:
        load(write_small_experts(tmp_path, {"x": np.ones(1, np.float16)}, **change))
    assert "config.json" in str(raised.value)
