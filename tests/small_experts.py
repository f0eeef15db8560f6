"""A small random Qwen3-MoE on disk: its second layer a feed-forward, the others mixtures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FF, VOCAB, LAYERS, CONTEXT = 64, 4, 2, 16, 96, 200, 3, 160
EXPERTS, PER_TOKEN, EXPERT_FF, DENSE_LAYER = 6, 2, 32, 1
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": WIDTH,
    "intermediate_size": FF,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "num_experts": EXPERTS,
    "num_experts_per_tok": PER_TOKEN,
    "moe_intermediate_size": EXPERT_FF,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [DENSE_LAYER],
}


def expert_tensors(
    seed: int = 0, width: int = WIDTH, expert_ff: int = EXPERT_FF
) -> dict[str, np.ndarray]:
    """Its float16 weights, large enough that distributions are peaked and experts differ."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 2.0) -> np.ndarray:
        values = random.standard_normal((rows, columns)) * scale / columns**0.5
        return values.astype(np.float16)

    def norm(size: int = width) -> np.ndarray:
        return (1 + 0.1 * random.standard_normal(size)).astype(np.float16)

    tensors = {
        "model.embed_tokens.weight": matrix(VOCAB, width, width**0.5),
        "model.norm.weight": norm(),
        "lm_head.weight": matrix(VOCAB, width, 3.0),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {
            f"{at}input_layernorm.weight": norm(),
            f"{at}post_attention_layernorm.weight": norm(),
            f"{at}self_attn.q_norm.weight": norm(HEAD_DIM),
            f"{at}self_attn.k_norm.weight": norm(HEAD_DIM),
            f"{at}self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, width),
            f"{at}self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, width),
            f"{at}self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, width),
            f"{at}self_attn.o_proj.weight": matrix(width, HEADS * HEAD_DIM),
        }
        blocks = {f"{at}mlp.": FF}
        if layer != DENSE_LAYER:
            tensors[f"{at}mlp.gate.weight"] = matrix(EXPERTS, width)
            blocks = {f"{at}mlp.experts.{expert}.": expert_ff for expert in range(EXPERTS)}
        for block, ff in blocks.items():
            tensors[f"{block}gate_proj.weight"] = matrix(ff, width)
            tensors[f"{block}up_proj.weight"] = matrix(ff, width)
            tensors[f"{block}down_proj.weight"] = matrix(width, ff)
    return tensors


def write_small_experts(
    folder: Path, tensors: dict[str, np.ndarray] | None = None, **config: object
) -> Path:
    """A folder in the Hugging Face form. `config`: keys with other values."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors or expert_tensors(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return folder
