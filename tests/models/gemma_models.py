"""Small models of the Gemma families and of Llama 4, with random weights large enough to expose
errors."""

from __future__ import annotations

from typing import Any

import torch
import transformers

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "sliding_window": 5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TYPES = ["sliding_attention", "full_attention"]
INPUTS = {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 64}
GEMMA4 = {
    "num_hidden_layers": 6,
    "global_head_dim": 32,
    "layer_types": TYPES * 3,
    "final_logit_softcapping": 3.0,
}
EFFECTIVE = GEMMA4 | INPUTS | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}
KEYS_AS_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}

# Chunks and scales that a short prompt reaches.
LLAMA4 = {
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "attention_chunk_size": 7,
    "floor_scale": 4,
    "attn_scale": 0.5,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": (
        "Gemma2",
        {
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma2 without caps": (
        "Gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3n": (
        "Gemma3n",
        {
            "num_hidden_layers": 6,
            "layer_types": TYPES * 3,
            "intermediate_size": [96, 96, 64, 64, 96, 96],
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": 60,
            "num_kv_shared_layers": 2,
            "laurel_rank": 8,
            "activation_sparsity_pattern": [0.9, 0.6, 0.0, 0.0, 0.0, 0.0],
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma4 e2b": ("Gemma4", EFFECTIVE),
    "gemma4 31b": ("Gemma4", GEMMA4 | KEYS_AS_VALUES | {"hidden_size_per_layer_input": 0}),
    "gemma4 26b": (
        "Gemma4",
        GEMMA4
        | KEYS_AS_VALUES
        | {
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 40,
        },
    ),
    "gemma4 unified": ("Gemma4Unified", GEMMA4 | KEYS_AS_VALUES),
    "llama4": ("Llama4", LLAMA4),
    "llama4 with dense layers": (
        "Llama4",
        LLAMA4 | {"interleave_moe_layer_step": 2, "use_qk_norm": False, "attention_bias": True},
    ),
}
"""Name of a case -> (prefix of transformers' classes, keys of the config)."""


def build(case: str, **options: Any) -> Any:
    """Return the float32 model of a case. `options` override its keys."""
    name, own = CASES[case]
    kind = f"{name}TextConfig"
    make = getattr(transformers, kind if hasattr(transformers, kind) else f"{name}Config")
    config = make(**(SMALL | own | options))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    randomize(model)
    return model


@torch.no_grad()
def randomize(model: Any) -> None:
    """Fill the parameters and the layer scalars of a model with random numbers."""
    for parameter in model.parameters():
        parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.normal_(0.8, 0.1)
