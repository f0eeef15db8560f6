"""Small random models of the hybrid families: recurrent layers beside attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

PROMPT = [3, 17, 5, 60, 2, 9, 44, 31, 8, 8, 12, 50, 7, 23, 1, 40, 33, 6, 19, 28, 61, 4, 10]
PROMPT += [11, 52, 36, 2, 45, 18, 27, 9, 63, 14, 5, 29, 38, 41, 22, 16]

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
DELTA = {
    "head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
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
PLAIN_DELTA = DELTA | {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.25,
    }
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
OLMO = {key: value for key, value in DELTA.items() if key != "rope_parameters"}
SHORT_CONV = {
    "norm_eps": 1e-5,
    "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}

CONV_EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_dense_layers": 2,
}
# A large eps, because the residual multiplier is squared in it.
GRANITE = {
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 48,
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
    "rms_norm_eps": 0.05,
}
NEMOTRON = {
    "num_hidden_layers": 6,
    "hybrid_override_pattern": "M*EM-E",
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 24,
    "n_routed_experts": 6,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "head_dim": 16,
}
FALCON = {"mamba_d_ssm": 128, "num_hidden_layers": 2, "head_dim": 16}
MULTIPLIERS = {
    "lm_head_multiplier": 0.4,
    "embedding_multiplier": 5.6,
    "mlp_multipliers": [0.9, 0.6],
    "key_multiplier": 0.4,
    "attention_out_multiplier": 0.9,
    "attention_in_multiplier": 1.2,
    "ssm_multipliers": [0.35, 0.25, 0.36, 0.5, 0.37],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.24,
}


def build(name: str, options: dict[str, Any]) -> Any:
    """Return the float32 model `name`ForCausalLM with weights large enough to expose errors. Decays
    are slow, so that the state of the first tokens matters at the last one."""
    config_name = f"{name}TextConfig" if name.startswith("Qwen3_5") else f"{name}Config"
    config = getattr(transformers, config_name)(**(SMALL | options))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    randomize(model)
    return model


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """Set all parameters and buffers of routers to random numbers."""
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
        if name.endswith(("expert_bias", "e_score_correction_bias")):
            buffer.normal_(0.0, 0.3)


def save(name: str, options: dict[str, Any], folder: Path) -> Any:
    """Save `build(name, options)` in `folder` and return it."""
    model = build(name, options)
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def expected_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]
