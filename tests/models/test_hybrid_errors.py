"""Files of hybrid models that contradict themselves are refused, naming the key or the tensor."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from gguf_hybrid_export import convert
from hybrid_models import (
    CONV_EXPERTS,
    DELTA,
    FALCON,
    GRANITE,
    MAMBA,
    NEMOTRON,
    SHORT_CONV,
    save,
)
from safetensors.numpy import load_file, save_file

from penstock.base.errors import ModelError
from penstock.models.families.registry import spec_of_folder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5": ("Qwen3_5", DELTA),
    "lfm2": ("Lfm2", SHORT_CONV),
    "lfm2_moe": ("Lfm2Moe", SHORT_CONV | CONV_EXPERTS),
    "granite": ("GraniteMoeHybrid", MAMBA | GRANITE),
    "falcon": ("FalconH1", MAMBA | FALCON),
    "nemotron": ("NemotronH", NEMOTRON),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for name, (architecture, options) in MODELS.items():
        save(architecture, options, root / name)
    return {name: root / name for name in MODELS}


def edited(folder: Path, into: Path, keys: dict[str, Any]) -> Path:
    """Write the config of `folder` with other values of `keys` in `into`."""
    config = json.loads((folder / "config.json").read_text()) | keys
    kept = {key: value for key, value in config.items() if value != "absent"}
    (into / "config.json").write_text(json.dumps(kept))
    return into


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        ("qwen3_5", {"layer_types": ["linear_attention"] * 3}, "layer_types has 3 entries"),
        ("qwen3_5", {"layer_types": ["linear_attention"] * 3 + ["rwkv"]}, "'rwkv'"),
        ("qwen3_5", {"linear_num_value_heads": 3}, "linear_num_value_heads 3"),
        ("qwen3_5", {"linear_num_key_heads": 0}, "linear_num_key_heads 0"),
        ("qwen3_5", {"linear_key_head_dim": 12}, "linear_key_head_dim 12"),
        ("qwen3_5", {"linear_value_head_dim": 1 << 40}, "linear_value_head_dim"),
        ("qwen3_5", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim 1"),
        ("qwen3_5", {"linear_conv_kernel_dim": -4}, "linear_conv_kernel_dim -4"),
        ("qwen3_5", {"layer_types": "absent", "full_attention_interval": 0}, "interval 0"),
        ("qwen3_5", {"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000"),
        ("qwen3_5", {"attn_output_gate": False}, "attn_output_gate false"),
        ("qwen3_5", {"output_gate_type": "sigmoid"}, "output_gate_type 'sigmoid'"),
        ("lfm2", {"layer_types": ["conv", "conv", "conv", "mamba"]}, "'mamba'"),
        ("lfm2", {"conv_L_cache": 9}, "conv_L_cache 9"),
        ("lfm2_moe", {"num_dense_layers": -1}, "num_dense_layers -1"),
        ("lfm2_moe", {"num_experts_per_tok": 9}, "9"),
        ("granite", {"layer_types": ["mamba", "attention", "rwkv", "mamba"]}, "'rwkv'"),
        ("granite", {"mamba_n_heads": 7}, "mamba_n_heads 7"),
        ("granite", {"mamba_d_head": 8}, "mamba_d_head 8 must be 16"),
        ("granite", {"mamba_n_groups": 3}, "mamba_n_groups (n_groups) 3"),
        ("granite", {"mamba_d_state": 0}, "mamba_d_state (ssm_state_size) 0"),
        ("granite", {"time_step_limit": [1.0]}, "time_step_limit"),
        ("granite", {"time_step_limit": [2.0, 1.0]}, "time_step_limit"),
        ("falcon", {"mlp_multipliers": [1.0]}, "mlp_multipliers must have 2 numbers"),
        ("falcon", {"ssm_multipliers": [1.0, 1.0]}, "ssm_multipliers must have 5 numbers"),
        ("falcon", {"mamba_d_ssm": 100}, "mamba_n_heads 8"),
        ("nemotron", {"layers_block_type": ["moe", "conv"]}, "'conv'"),
        ("nemotron", {"layers_block_type": []}, "layers_block_type has 0 entries"),
        (
            "nemotron",
            {"layers_block_type": "absent", "hybrid_override_pattern": "M*X"},
            "hybrid_override_pattern: ['X']",
        ),
        ("nemotron", {"mlp_hidden_act": "silu"}, "mlp_hidden_act 'silu'"),
        ("nemotron", {"moe_latent_size": 16}, "moe_latent_size 16"),
        ("nemotron", {"n_groups": 3}, "mamba_n_heads (mamba_num_heads) 8"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(
    folders: dict[str, Path], tmp_path: Path, model: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        spec_of_folder(edited(folders[model], tmp_path, keys))


def test_a_limit_of_time_steps_may_be_infinite_in_both_spellings(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """Python writes Infinity, newer versions of transformers an object."""
    spec = spec_of_folder(folders["granite"])
    for number in ("Infinity", '{"__float__": "Infinity"}'):
        edited(folders["granite"], tmp_path, {"time_step_limit": "here"})
        written = (tmp_path / "config.json").read_text()
        (tmp_path / "config.json").write_text(written.replace('"here"', f"[0.0, {number}]"))
        assert spec_of_folder(tmp_path) == spec
    (tmp_path / "config.json").write_text(written.replace('"here"', "[0.0, Infinity"))
    with pytest.raises(ModelError, match="JSON is malformed"):
        spec_of_folder(tmp_path)


@pytest.mark.parametrize(
    ("model", "tensor"),
    [
        ("qwen3_5", "model.layers.0.linear_attn.A_log"),
        ("qwen3_5", "model.layers.1.linear_attn.in_proj_z.weight"),
        ("lfm2", "model.layers.0.conv.conv.weight"),
        ("lfm2_moe", "model.layers.2.feed_forward.expert_bias"),
        ("granite", "model.layers.0.mamba.D"),
        ("granite", "model.layers.0.block_sparse_moe.input_linear.weight"),
        ("falcon", "model.layers.1.mamba.conv1d.bias"),
        ("nemotron", "backbone.layers.0.mixer.norm.weight"),
        ("nemotron", "backbone.layers.2.mixer.shared_experts.up_proj.weight"),
    ],
)
def test_a_missing_tensor_is_named(
    folders: dict[str, Path], tmp_path: Path, model: str, tensor: str
) -> None:
    tensors = load_file(folders[model] / "model.safetensors")
    del tensors[tensor]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    edited(folders[model], tmp_path, {})
    with pytest.raises(ModelError, match=re.escape(f"tensor {tensor} is missing")):
        load_model(ModelFiles("m", "folder", tmp_path), "auto")


def test_a_tensor_of_another_shape_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(folders["qwen3_5"] / "model.safetensors")
    edited(folders["qwen3_5"], tmp_path, {"linear_key_head_dim": 24})
    with pytest.raises(ModelError, match=re.escape("in_proj_qkv.weight has shape")):
        load_model(ModelFiles("m", "folder", tmp_path), "auto")


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        ("qwen3_5", {"qwen35.ssm.time_step_rank": 3}, "qwen35.ssm.inner_size 32"),
        ("qwen3_5", {"qwen35.ssm.group_count": 3}, "ssm.group_count 3"),
        ("qwen3_5", {"qwen35.ssm.state_size": 20}, "ssm.state_size 20"),
        ("qwen3_5", {"qwen35.full_attention_interval": 0}, "full_attention_interval 0"),
        ("qwen3_5", {"qwen35.nextn_predict_layers": 4}, "qwen35.block_count 0"),
        ("lfm2", {"lfm2.shortconv.l_cache": 40}, "shortconv.l_cache 40"),
        ("lfm2", {"lfm2.attention.head_count_kv": [0, 2]}, "lfm2.attention.head_count_kv"),
        ("lfm2", {"lfm2.attention.head_count_kv": [0, 2, 0, 1]}, "lfm2.attention.head_count_kv"),
        ("granite", {"granitehybrid.ssm.inner_size": 100}, "granitehybrid.ssm.inner_size 100"),
        ("nemotron", {"nemotron_h_moe.feed_forward_length": 96}, "feed_forward_length"),
    ],
)
def test_gguf_metadata_that_contradicts_itself_is_refused(
    folders: dict[str, Path], tmp_path: Path, model: str, keys: dict[str, Any], message: str
) -> None:
    convert(folders[model], tmp_path / "m.gguf", changed_keys=keys)
    with pytest.raises(ModelError, match=re.escape(message)):
        load_model(ModelFiles("m", "gguf", tmp_path / "m.gguf"), "auto")
