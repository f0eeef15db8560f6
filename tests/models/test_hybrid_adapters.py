"""Adapters of recurrent layers, latent attention, output gates and shared experts have the effect
that they have in `peft`, beside other rows and in chunks of any size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from adapted_rows import AdaptedRows, adapted_rows, truth, with_random_adapters
from gguf_hybrid_export import convert
from hybrid_models import (
    DELTA,
    EXPERTS,
    FALCON,
    GRANITE,
    MAMBA,
    MULTIPLIERS,
    NEMOTRON,
    OLMO,
    PLAIN_DELTA,
    PROMPT,
    SHORT_CONV,
    save,
)

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.peft_folder import read_adapter
from penstock.config import LoraSettings
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model
from tests.support.checkpoints.lora_adapters import PREFIX, write_adapter

LATENT = {
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 40,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
}
SHORT = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


class Case(NamedTuple):
    """A model: its class in transformers, its options, and the modules that adapters change."""

    name: str
    options: dict[str, Any]
    modules: tuple[str, ...]


DELTA_MODULES = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
CASES = {
    "Qwen3.5": Case("Qwen3_5", DELTA | SHORT, (*DELTA_MODULES, *ATTENTION, *FEED_FORWARD)),
    "Qwen3-Next": Case(
        "Qwen3Next",
        PLAIN_DELTA | EXPERTS | SHORT,
        ("in_proj_qkvz", "in_proj_ba", "q_proj", "shared_expert_gate", *FEED_FORWARD),
    ),
    "Qwen2-MoE": Case("Qwen2Moe", EXPERTS, ("o_proj", "shared_expert_gate", *FEED_FORWARD)),
    "OLMo Hybrid": Case(
        "OlmoHybrid",
        OLMO,
        ("b_proj", "a_proj", "g_proj", *ATTENTION, *FEED_FORWARD),
    ),
    "LFM2": Case("Lfm2", SHORT_CONV, ("in_proj", "out_proj", "q_proj", "w1", "w2", "w3")),
    "Granite 4": Case(
        "GraniteMoeHybrid",
        MAMBA | GRANITE | {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
        ("in_proj", "out_proj", "v_proj", "shared_mlp.input_linear", "shared_mlp.output_linear"),
    ),
    "Falcon-H1": Case(
        "FalconH1",
        MAMBA | FALCON | MULTIPLIERS,
        ("in_proj", "out_proj", *ATTENTION, *FEED_FORWARD),
    ),
    "Nemotron-H": Case(
        "NemotronH",
        NEMOTRON | {"num_hidden_layers": 4, "hybrid_override_pattern": "M*E-"},
        ("in_proj", "out_proj", *ATTENTION, *FEED_FORWARD),
    ),
    "DeepSeek V2": Case(
        "DeepseekV2",
        LATENT | {"q_lora_rank": None, "first_k_dense_replace": 1},
        ("q_proj", "kv_a_proj_with_mqa", "o_proj", *FEED_FORWARD),
    ),
    "GLM-4.7-Flash": Case(
        "Glm4MoeLite",
        LATENT | {"mlp_layer_types": ["dense", "sparse"]},
        ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", *FEED_FORWARD),
    ),
}
PROMPTS = ((PROMPT, 0), (PROMPT[::-1], None), (PROMPT[3:25], 1), (PROMPT[:9], 0))
TOLERANCE = {"rtol": 1e-3, "atol": 1e-3}


def adapted_model(case: Case, folder: Path) -> Any:
    """Save a model in `folder`/base, and two adapters in `folder`/adapters. Return the model with
    both."""
    model = save(case.name, case.options, folder / "base")
    # For types that it knows, peft refuses out_proj beside a scan, and takes the shared experts'
    # modules for routed experts.
    model.config.model_type = "unknown"
    return with_random_adapters(
        model,
        folder / "adapters",
        {"r": 4, "lora_alpha": 6, "target_modules": list(case.modules)},
        {"r": 9, "target_modules": list(case.modules), "layers_to_transform": [0]},
    )


@pytest.fixture(scope="module", params=list(CASES))
def adapted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[AdaptedRows, Any]]:
    """(rows of a runtime, the same model with its adapters in `peft`) of one case."""
    folder = tmp_path_factory.mktemp("model")
    model = adapted_model(CASES[request.param], folder)
    with adapted_rows(folder / "base", folder / "adapters") as rows:
        yield rows, model


def assert_logits(rows: AdaptedRows, model: Any) -> None:
    logits = rows.last_logits(PROMPTS)
    expected = [truth(model, *prompt) for prompt in PROMPTS]
    np.testing.assert_allclose(logits, expected, **TOLERANCE)


def test_rows_with_two_adapters_and_without_have_the_logits_of_peft(adapted: Any) -> None:
    rows, model = adapted
    assert_logits(rows, model)
    without = truth(model, PROMPT, None)
    assert all(np.abs(truth(model, PROMPT, one) - without).max() > 0.05 for one in (0, 1))


@pytest.mark.parametrize("cuts", [(5, 16, 23, 38), (16, 32), (1, 2, 3)])
def test_chunks_and_other_rows_change_no_bit(adapted: Any, cuts: tuple[int, ...]) -> None:
    rows, _ = adapted
    together = rows.last_logits(PROMPTS, cuts)
    alone = [rows.last_logits([prompt])[0] for prompt in PROMPTS]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("name", ["Qwen3.5", "Qwen3-Next"])
def test_an_adapter_fits_a_gguf_file_with_another_order_of_rows(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    every = {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
    model = adapted_model(case._replace(options=case.options | every), tmp_path)
    convert(tmp_path / "base", tmp_path / "m.gguf")
    with adapted_rows(tmp_path / "m.gguf", tmp_path / "adapters") as rows:
        assert_logits(rows, model)


def refusal(path: Path, adapter: Path) -> str:
    files = ModelFiles("m", "folder" if path.is_dir() else "gguf", path)
    with pytest.raises(AdapterRefused) as refused:
        read_adapter(adapter, load_model(files, "auto").spec, LoraSettings())
    return refused.value.message


@pytest.mark.parametrize(
    ("case", "module", "message"),
    [
        ("GLM-4.7-Flash", "self_attn.kv_b_proj", "kv_b_proj is not supported: its matrix mult"),
        ("GLM-4.7-Flash", "mlp.experts", "an adapter for experts is not supported"),
        ("Granite 4", "block_sparse_moe.router.layer", "an adapter for experts is not supported"),
        ("Qwen2-MoE", "mlp.up_proj", "layer 0 is a mixture of experts"),
        ("Qwen2-MoE", "mlp.gate", "an adapter for the router is not supported"),
        ("Qwen3.5", "linear_attn.conv1d", "weight is not a LoRA factor of a layer"),
        ("Qwen3.5", "self_attn.q_proj", "layer 0 has no such linear layer"),
        ("LFM2", "conv.out_proj", "has shape [8, 4], expected [64, 4]"),
    ],
)
def test_other_modules_are_refused_by_name(
    case: str, module: str, message: str, tmp_path: Path
) -> None:
    save(CASES[case].name, CASES[case].options, tmp_path / "base")
    name, leaf = f"{PREFIX}layers.0.{module}", module.rpartition(".")[2]
    tensors = {f"{name}.lora_A.weight": np.ones((4, 64), np.float32)}
    tensors[f"{name}.lora_B.weight"] = np.ones((8, 4), np.float32)
    adapter = write_adapter(tmp_path / "a", tensors, config={"target_modules": [leaf]})
    assert message in refusal(tmp_path / "base", adapter)


def test_a_gguf_file_whose_weights_include_factors_is_refused(tmp_path: Path) -> None:
    adapted_model(CASES["Falcon-H1"], tmp_path)
    convert(tmp_path / "base", tmp_path / "m.gguf")
    message = refusal(tmp_path / "m.gguf", tmp_path / "adapters" / "first")
    assert "multiplied by factors that the file does not name" in message
