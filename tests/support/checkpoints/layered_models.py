"""Small random models whose layers differ: recurrent layers, latents, KV caches of several sizes
and shared ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers

VOCAB, CONTEXT = 96, 256
_SMALL: Final = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_DELTA: Final = {
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
}
_ROPE: Final = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
_EXPERTS: Final = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
_MAMBA: Final = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_LATENT: Final = {
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
MODELS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "qwen3.5": (
        "Qwen3_5",
        {
            **_DELTA,
            "rope_parameters": {
                **_ROPE,
                "mrope_section": [3, 3, 2],
                "mrope_interleaved": True,
            },
        },
    ),
    "qwen3-next": ("Qwen3Next", {**_DELTA, **_EXPERTS, "rope_parameters": _ROPE}),
    "olmo-hybrid": ("OlmoHybrid", _DELTA),
    "lfm2": (
        "Lfm2",
        {
            "norm_eps": 1e-5,
            "conv_L_cache": 3,
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["conv", "full_attention", "conv"],
        },
    ),
    "granite-hybrid": (
        "GraniteMoeHybrid",
        {
            **_MAMBA,
            "layer_types": ["mamba", "attention", "mamba"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
            "residual_multiplier": 0.22,
            "rms_norm_eps": 0.05,
        },
    ),
    "nemotron-h": (
        "NemotronH",
        {
            "num_hidden_layers": 4,
            "hybrid_override_pattern": "M*EM",
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 24,
            "n_routed_experts": 6,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 48,
            "head_dim": 16,
        },
    ),
    "falcon-h1": (
        "FalconH1",
        {**_MAMBA, "mamba_d_ssm": 128, "num_hidden_layers": 2, "head_dim": 16},
    ),
    "gemma4": (
        "Gemma4",
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "global_head_dim": 32,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 24,
            "final_logit_softcapping": 5.0,
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": VOCAB,
            "num_kv_shared_layers": 2,
            "tie_word_embeddings": True,
        },
    ),
    "gemma4-experts": (
        "Gemma4",
        {
            "num_hidden_layers": 2,
            "head_dim": 16,
            "global_head_dim": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 24,
            "final_logit_softcapping": 5.0,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 40,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3n": (
        "Gemma3n",
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 24,
            "intermediate_size": [96, 96, 64, 64],
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": VOCAB,
            "num_kv_shared_layers": 2,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0],
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "mistral4": (
        "Mistral4",
        {
            **_LATENT,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 8,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
            },
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {**_LATENT, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1},
    ),
    "glm-4.7-flash": ("Glm4MoeLite", _LATENT),
}


def write_layered_model(name: str, folder: Path) -> Path:
    """Write the float32 checkpoint of one of `MODELS` to `folder`, with weights large enough to
    expose errors. The states of recurrent layers decay slowly."""
    model = layered_model(name)
    model.save_pretrained(folder)
    return folder


def layered_model(name: str) -> Any:
    """Return one of `MODELS` as a model of transformers."""
    family, options = MODELS[name]
    text = "Text" if family in ("Qwen3_5", "Gemma3n", "Gemma4") else ""
    config = getattr(transformers, f"{family}{text}Config")(**(_SMALL | dict(options)))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    _randomize(model)
    return model


@torch.no_grad()
def _randomize(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.normal_(-1.0, 0.5)
        elif name.endswith("dt_bias"):
            parameter.normal_(-2.0, 0.5)
        elif "conv" in name and parameter.ndim == 3:
            parameter.normal_(0.0, 0.4)
        else:
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.normal_(0.8, 0.1)
        elif "inv_freq" not in name and buffer.is_floating_point() and buffer.ndim == 1:
            buffer.normal_(0.0, 0.15)
