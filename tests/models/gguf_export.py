"""Writes a small transformers model as GGUF, in the layout of llama.cpp's converter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

GGUF_NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "self_attn.q_proj.": "attn_q.",
    "self_attn.k_proj.": "attn_k.",
    "self_attn.v_proj.": "attn_v.",
    "self_attn.qkv_proj.": "attn_qkv.",
    "self_attn.o_proj.": "attn_output.",
    "self_attn.q_norm.": "attn_q_norm.",
    "self_attn.k_norm.": "attn_k_norm.",
    "input_layernorm.": "attn_norm.",
    "post_attention_layernorm.": "ffn_norm.",
    "mlp.gate_proj.": "ffn_gate.",
    "mlp.up_proj.": "ffn_up.",
    "mlp.gate_up_proj.": "ffn_up.",
    "mlp.down_proj.": "ffn_down.",
    "mlp.gate.": "ffn_gate_inp.",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "model.layers.": "blk.",
}


GEMMA_NAMES = GGUF_NAMES | {
    "post_attention_layernorm.": "post_attention_norm.",
    "pre_feedforward_layernorm.": "ffn_norm.",
    "post_feedforward_layernorm.": "post_ffw_norm.",
}


GLM_NAMES = GGUF_NAMES | {
    "post_self_attn_layernorm.": "post_attention_norm.",
    "post_mlp_layernorm.": "post_ffw_norm.",
}


POST_NORM_NAMES = GGUF_NAMES | {
    "post_attention_layernorm.": "post_attention_norm.",
    "post_feedforward_layernorm.": "post_ffw_norm.",
}


PHI_NAMES = {"model.final_layernorm.": "output_norm.", "self_attn.dense.": "attn_output."} | (
    GGUF_NAMES | {"mlp.fc1.": "ffn_up.", "mlp.fc2.": "ffn_down."}
)


STARCODER_NAMES = GGUF_NAMES | {"mlp.c_fc.": "ffn_up.", "mlp.c_proj.": "ffn_down."}


HUNYUAN_NAMES = GGUF_NAMES | {
    "self_attn.query_layernorm.": "attn_q_norm.",
    "self_attn.key_layernorm.": "attn_k_norm.",
}


ARCHITECTURES = {
    "qwen3_moe": "qwen3moe",
    "mistral": "llama",
    "mixtral": "llama",
    "glm": "chatglm",
    "olmo3": "olmo2",
    "hunyuan_v1_dense": "hunyuan-dense",
    "phi": "phi2",
    "cohere": "command-r",
    "ministral3": "mistral3",
}
"""Where a converter's name is not that of the config."""
SEED_OSS_NAMES = GGUF_NAMES | {"post_attention_layernorm.": "post_attention_norm."}
OWN_NAMES = {
    "gemma3": GEMMA_NAMES,
    "glm4": GLM_NAMES,
    "seed_oss": SEED_OSS_NAMES,
    "olmo2": POST_NORM_NAMES,
    "exaone4": POST_NORM_NAMES,
    "phi2": PHI_NAMES,
    "starcoder2": STARCODER_NAMES,
    "hunyuan-dense": HUNYUAN_NAMES,
}
INTERLEAVED = ("llama", "granite", "arcee", "mistral3", "smollm3")
"""Whose rows of q and k the converters put in the order of neighbours."""


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Permute the halves of each head to neighbours, as converters do to q and k of some
    architectures."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def export_gguf(
    model: Any,
    path: Path,
    kind: str = "F32",
    extra_tensors: dict[str, np.ndarray] | None = None,
    tokens: list[str] | None = None,
    extra_keys: Mapping[str, Any] | None = None,
) -> None:
    """Write `model` to `path`. `kind`: the type of the matrices; vectors and routers stay F32.
    `extra_keys` override metadata of the same name."""
    config = model.config
    architecture = ARCHITECTURES.get(config.model_type, config.model_type).removesuffix("_text")
    gemma = architecture in ("gemma", "gemma3")
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        names = ("layer_norm_eps", "norm_epsilon")
        writer.add_layer_norm_eps(next(getattr(config, n) for n in names if hasattr(config, n)))
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if architecture == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    partial = rope.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(size * partial))
    if architecture == "phi3":
        writer.add_sliding_window(config.sliding_window or 0)
        extra_tensors = _add_longrope(writer, config) | (extra_tensors or {})
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if getattr(config, "num_experts_per_tok", None):
        _add_experts(writer, config)
    for key, value in (extra_keys or {}).items():
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        writer.kv_data[0].pop(key, None)
        add[type(value)](key, value)
    if tokens is not None:
        _add_tokenizer(writer, tokens)
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = parameter.float().numpy()
        if architecture in INTERLEAVED and ".q_proj." in name:
            values = interleave(values, config.num_attention_heads)
        if architecture in INTERLEAVED and ".k_proj." in name:
            values = interleave(values, config.num_key_value_heads)
        if gemma and name.endswith("norm.weight"):
            values = values + 1
        for old, new in OWN_NAMES.get(architecture, GGUF_NAMES).items():
            name = name.replace(old, new)
        if name.endswith("mlp.experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
                part_name = name.replace("mlp.experts.gate_up_proj", f"ffn_{part}_exps.weight")
                _add_tensor(writer, part_name, np.ascontiguousarray(half), kind)
            continue
        plain = values.ndim < 2 or "ffn_gate_inp" in name
        _add_tensor(writer, name, values, "F32" if plain else kind)
    for name, values in (extra_tensors or {}).items():
        _add_tensor(writer, name, values, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_longrope(writer: gguf.GGUFWriter, config: Any) -> dict[str, np.ndarray]:
    """Add the tensors of LongRoPE's factors if the model uses it."""
    rope, original = config.rope_parameters, config.original_max_position_embeddings
    writer.add_rope_scaling_orig_ctx_len(original)
    if rope["rope_type"] != "longrope":
        return {}
    factor = config.max_position_embeddings / original
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))
    return {
        f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"], np.float32)
        for name in ("long", "short")
    }


def _add_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType[kind])


def _add_tokenizer(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    control = [
        gguf.TokenType.CONTROL if t.startswith("<|") else gguf.TokenType.NORMAL for t in tokens
    ]
    writer.add_token_types(control)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(
        [
            {"name": "default", "template": "{{ messages }}"},
            {"name": "tool_use", "template": "{{ tools }}"},
        ]
    )
