"""A small random Qwen3.5 on disk: gated delta nets, with attention in its third layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.families.registry import hf_names, spec_of_folder

VOCAB, LAYERS, CONTEXT = 200, 4, 160
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}


def write_small_hybrid(folder: Path, seed: int = 0, **config: object) -> Path:
    """Write a Hugging Face folder of float32 weights, large enough that distributions are peaked.
    Decays are slow, so that the first tokens matter at the last one. `config`: keys with other
    values."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    spec = spec_of_folder(folder)
    random = np.random.default_rng(seed)
    shapes = expected_shapes(hf_names(spec), spec)
    tensors = {name: small_tensor(name, shape, random) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def small_tensor(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    values = random.standard_normal(shape)
    if name.endswith("A_log"):
        values = 0.5 * values - 1
    elif name.endswith("dt_bias"):
        values = 0.5 * values - 2
    elif "conv" in name:
        values = 0.4 * values
    elif len(shape) == 1:
        values = 1 + 0.1 * values
    elif "embed" not in name:
        values = 2 * values / shape[-1] ** 0.5
    return values.astype(np.float32)
