"""A config.json that lacks keys, or has keys that its family ignores, gives the logits of
`transformers`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder

from penstock.models.decoder.rope_spec import LongRopeScaling
from penstock.models.families.registry import spec_of_folder

PROMPT = [3, 17, 5, 60, 2, 9, 44, 31, 8, 8, 12, 50, 7, 23, 1, 40, 33, 6, 19, 28, 61, 4, 10]
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GEMMA3 = {"num_hidden_layers": 7, "head_dim": 32, "sliding_window": 5, "query_pre_attn_scalar": 32}
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5}
QWEN3_MOE = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "head_dim": 32,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 5}
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
FACTORS = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 4.0, 12.0, 30.0]}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": FACTORS["short_factor"] * 2,
    "long_factor": FACTORS["long_factor"] * 2,
}
WITHOUT_THETA = {
    "full_attention": {"rope_type": "default"},
    "sliding_attention": {"rope_type": "default"},
}

# The model, its options, the keys removed from its file, and the keys added.
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "llama of a window, which it does not have": ("Llama", {}, (), {"sliding_window": 5}),
    "mixtral": ("Mixtral", MIXTRAL, ("rms_norm_eps", "rope_parameters"), {}),
    "qwen3 of windows from layer 28 on": (
        "Qwen3",
        {"head_dim": 32, "max_window_layers": 28, **WINDOW},
        ("layer_types", "max_window_layers"),
        {},
    ),
    "qwen3-moe of windows, which all layers have": (
        "Qwen3Moe",
        QWEN3_MOE | WINDOW,
        (),
        {"max_window_layers": 2},
    ),
    "granite, multipliers": (
        "Granite",
        {},
        (
            "embedding_multiplier",
            "attention_multiplier",
            "residual_multiplier",
            "logits_scaling",
            "rms_norm_eps",
        ),
        {},
    ),
    "phi3, an eps and a context before longrope": (
        "Phi3",
        {"rms_norm_eps": 1e-5, "max_position_embeddings": 16_384},
        ("rms_norm_eps", "rope_parameters", "original_max_position_embeddings"),
        {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 8}},
    ),
    "phi3, yarn that means longrope": (
        "Phi3",
        {},
        ("rope_parameters",),
        {
            "rope_scaling": {"type": "yarn", "attention_factor": 1.5} | FACTORS,
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": 4,
        },
    ),
    "glm, all but its sizes": (
        "Glm",
        {"head_dim": 128},
        (
            "num_key_value_heads",
            "head_dim",
            "rms_norm_eps",
            "attention_bias",
            "rope_parameters",
        ),
        {},
    ),
    "glm4, all but its sizes": (
        "Glm4",
        {"head_dim": 128},
        (
            "num_key_value_heads",
            "head_dim",
            "rms_norm_eps",
            "attention_bias",
            "rope_parameters",
        ),
        {},
    ),
    "glm4, a base alone": (
        "Glm4",
        {"head_dim": 16},
        ("rope_parameters",),
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ),
    "ernie4_5, all but its sizes": (
        "Ernie4_5",
        {"head_dim": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
        (
            "num_key_value_heads",
            "head_dim",
            "rms_norm_eps",
            "rope_parameters",
            "tie_word_embeddings",
            "use_bias",
        ),
        {},
    ),
    "seed_oss, biases and heads": (
        "SeedOss",
        {"head_dim": 128, "num_attention_heads": 8, "num_key_value_heads": 8},
        (
            "num_key_value_heads",
            "head_dim",
            "attention_bias",
            "attention_out_bias",
            "rope_parameters",
        ),
        {},
    ),
    "helium, an eps and a base": (
        "Helium",
        {"head_dim": 16, "rms_norm_eps": 1e-8},
        ("rms_norm_eps", "rope_parameters"),
        {},
    ),
    "ministral, heads and layers": (
        "Ministral",
        {"head_dim": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "sliding_window": 5},
        ("num_key_value_heads", "layer_types", "rope_parameters"),
        {},
    ),
    "llama, biases that are those of others": (
        "Llama",
        {},
        (),
        {"use_bias": True, "attention_out_bias": True},
    ),
    "smollm3, rotation": ("SmolLM3", {}, ("rope_parameters",), {}),
    "smollm3, an interval": ("SmolLM3", {}, ("no_rope_layers",), {"no_rope_layer_interval": 2}),
    "smollm3, a tied head": (
        "SmolLM3",
        {"tie_word_embeddings": True},
        ("tie_word_embeddings",),
        {},
    ),
    "gemma3, layers": ("Gemma3", GEMMA3, ("layer_types", "sliding_window_pattern"), {}),
    "gemma3, rotation": ("Gemma3", GEMMA3, ("rope_parameters",), {}),
    "gemma3, local rotation": ("Gemma3", GEMMA3, ("rope_parameters",), {"rope_theta": 1e5}),
    "gemma3, bases in the newer spelling": (
        "Gemma3",
        GEMMA3,
        ("rope_parameters",),
        {"rope_parameters": WITHOUT_THETA},
    ),
    "gemma3, bases in both spellings": (
        "Gemma3",
        GEMMA3,
        ("rope_parameters",),
        {"rope_parameters": WITHOUT_THETA, "rope_theta": 1e5, "rope_local_base_freq": 300.0},
    ),
    "gemma3, a scaling that was added in the older spelling": (
        "Gemma3",
        GEMMA3,
        (),
        {"rope_scaling": LINEAR},
    ),
    "llama, a scaling that was added in the older spelling": (
        "Llama",
        {},
        (),
        {"rope_scaling": LINEAR},
    ),
    "llama, two contexts before its scaling": (
        "Llama",
        {"rope_parameters": YARN},
        (),
        {"original_max_position_embeddings": 32},
    ),
    "llama, an activation that is Gemma's": (
        "Llama",
        {},
        (),
        {"hidden_activation": "gelu_pytorch_tanh"},
    ),
    "llama, a mask that is Gemma's": ("Llama", {}, (), {"use_bidirectional_attention": True}),
    "mistral, a base that is Gemma's": (
        "Mistral",
        {"sliding_window": 5},
        (),
        {"rope_local_base_freq": 50.0},
    ),
    "llama, rotation that is SmolLM3's": ("Llama", {}, (), {"no_rope_layers": [1, 0, 1]}),
    "qwen3, rotation that is SmolLM3's": (
        "Qwen3",
        {"head_dim": 32},
        (),
        {"no_rope_layer_interval": 2},
    ),
    "qwen3-moe, dense layers": ("Qwen3Moe", QWEN3_MOE, (), {"mlp_only_layers": None}),
    "gemma3, its scale": ("Gemma3", GEMMA3, ("query_pre_attn_scalar",), {}),
    "gemma3, its activation": ("Gemma3", GEMMA3, ("hidden_activation",), {}),
    "gemma3, a tied head": (
        "Gemma3",
        GEMMA3 | {"tie_word_embeddings": True},
        ("tie_word_embeddings",),
        {},
    ),
}


def save(
    folder: Path, name: str, options: dict[str, Any], lacks: Iterable[str], has: dict[str, Any]
) -> None:
    """Save a small model with weights large enough to expose errors."""
    config_name = f"{name}TextConfig" if name == "Gemma3" else f"{name}Config"
    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**(SMALL | options))
    model = getattr(transformers, f"{name}ForCausalLM")(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    model.save_pretrained(folder)
    edit(folder, lacks, has)


def edit(folder: Path, lacks: Iterable[str], has: dict[str, Any]) -> None:
    path = folder / "config.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in written.items() if k not in lacks} | has))


@pytest.mark.parametrize("case", list(CASES))
def test_missing_keys_get_the_defaults_of_the_family(case: str, tmp_path: Path) -> None:
    save(tmp_path, *CASES[case])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0]
    logits = Stepper(*load_decoder(tmp_path)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("written, served", [(64, 256), (256, 256), (512, 512)])
def test_context_length_of_yarn_is_the_scaled_one(
    written: int, served: int, tmp_path: Path
) -> None:
    """Some configs give the context before scaling, some the one after."""
    has = {"rope_scaling": YARN, "rope_theta": 1e4, "max_position_embeddings": written}
    save(tmp_path, "Qwen2", {}, ("rope_parameters",), has)
    assert spec_of_folder(tmp_path).max_model_len == served


def test_longrope_is_read_under_its_older_name(tmp_path: Path) -> None:
    specs = []
    for name in ("su", "longrope"):
        has = {"rope_scaling": {"type": name} | FACTORS, "partial_rotary_factor": 0.5}
        save(tmp_path / name, "Phi3", {}, ("rope_parameters",), has)
        specs.append(spec_of_folder(tmp_path / name))
    assert specs[0] == specs[1]
    assert isinstance(specs[0].rope.scaling, LongRopeScaling)
