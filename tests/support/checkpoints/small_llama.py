"""A small random Llama on disk, and requests that make its answers differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FF, VOCAB, LAYERS, CONTEXT = 64, 4, 2, 16, 96, 200, 2, 160


def write_small_llama(
    folder: Path,
    seed: int = 0,
    vocab: int = VOCAB,
    *,
    width: int = WIDTH,
    head_dim: int = HEAD_DIM,
    ff: int = FF,
) -> Path:
    """Write a LlamaForCausalLM with float16 weights, large enough that its distributions are
    peaked."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        values = random.standard_normal((rows, columns)) * scale / columns**0.5
        return values.astype(np.float16)

    def norm() -> np.ndarray:
        return (1 + 0.1 * random.standard_normal(width)).astype(np.float16)

    tensors = {
        "model.embed_tokens.weight": matrix(vocab, width, width**0.5),
        "model.norm.weight": norm(),
        "lm_head.weight": matrix(vocab, width, 3.0),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= {
            f"{prefix}input_layernorm.weight": norm(),
            f"{prefix}post_attention_layernorm.weight": norm(),
            f"{prefix}self_attn.q_proj.weight": matrix(HEADS * head_dim, width, 2.0),
            f"{prefix}self_attn.k_proj.weight": matrix(KV_HEADS * head_dim, width, 2.0),
            f"{prefix}self_attn.v_proj.weight": matrix(KV_HEADS * head_dim, width, 2.0),
            f"{prefix}self_attn.o_proj.weight": matrix(width, HEADS * head_dim, 2.0),
            f"{prefix}mlp.gate_proj.weight": matrix(ff, width, 2.0),
            f"{prefix}mlp.up_proj.weight": matrix(ff, width, 2.0),
            f"{prefix}mlp.down_proj.weight": matrix(width, ff, 2.0),
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": ff,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
