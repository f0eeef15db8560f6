"""A small random Qwen3-MoE on disk: its second layer is dense, the others are mixtures of
experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

WIDTH, HEADS, KV_HEADS, HEAD_DIM, FF, VOCAB, LAYERS, CONTEXT = 64, 4, 2, 16, 96, 200, 3, 160
EXPERTS, PER_TOKEN, EXPERT_FF, DENSE_LAYER = 6, 2, 32, 1
CONFIG: dict[str, Any] = {
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

GGUF_NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    "input_layernorm.": "attn_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    "self_attn.o_proj.": "attn_output.",
    "self_attn.": "attn_",
    "mlp.gate.": "ffn_gate_inp.",
    "mlp.": "ffn_",
    "_proj.": ".",
}


def expert_tensors(
    seed: int = 0, width: int = WIDTH, expert_ff: int = EXPERT_FF
) -> dict[str, np.ndarray]:
    """Return its float16 weights, large enough that distributions are peaked and experts differ."""
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
    """Write a Hugging Face folder. `config`: keys with other values."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors or expert_tensors(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return folder


def write_small_experts_gguf(
    path: Path, tensors: dict[str, np.ndarray], kind: str, config: dict[str, Any]
) -> Path:
    """Write the same as a GGUF file: matrices of type `kind`, routers and norms F32."""
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    stacks: dict[str, list[np.ndarray]] = {}
    for name, values in tensors.items():
        for old, new in GGUF_NAMES.items():
            name = name.replace(old, new)
        plain = values.ndim < 2 or "ffn_gate_inp" in name
        wanted = gguf.GGMLQuantizationType["F32" if plain else kind]
        packed = gguf.quants.quantize(values.astype(np.float32), wanted)
        block, experts, expert = name.partition("ffn_experts.")
        if experts:
            part = expert.split(".")[1]
            stacks.setdefault(f"{block}ffn_{part}_exps.weight", []).append(packed)
        else:
            writer.add_tensor(name, packed, raw_dtype=wanted)
    for name, each in stacks.items():
        writer.add_tensor(name, np.stack(each), raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
