"""A small random DeepSeek V3 on disk: latent attention; its first layer is dense, the others are
mixtures of experts in groups, beside shared experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.families.registry import hf_names, spec_of_folder

VOCAB, LAYERS, CONTEXT = 200, 3, 160
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 40,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}


def write_small_latent(folder: Path, seed: int = 0, **config: object) -> Path:
    """Write a Hugging Face folder of float16 weights, large enough that distributions are peaked
    and experts differ. `config`: keys with other values."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    spec = spec_of_folder(folder)
    random = np.random.default_rng(seed)
    shapes = expected_shapes(hf_names(spec), spec)
    tensors = {name: _tensor(name, shape, random) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def _tensor(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    values = random.standard_normal(shape)
    if name.endswith("e_score_correction_bias"):
        return (0.2 * values).astype(np.float32)
    if len(shape) == 1:
        values = 1 + 0.1 * values
    elif "embed" not in name:
        values = 2 * values / shape[-1] ** 0.5
    return values.astype(np.float16)
