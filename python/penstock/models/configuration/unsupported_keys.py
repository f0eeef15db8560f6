"""Keys of a model's files that change what it computes and that no code here supports.

A file may have such a key with a neutral value. Any other value is refused by its key: the model
would load and answer wrongly. Keys that no table lists and no code reads do not change results
(names, licences, training settings), or come with tensors that are refused by name. The GGUF tables
follow llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np

from penstock.base.errors import ModelError

Neutral: TypeAlias = Mapping[str, tuple[float, ...]]
"""Key -> the values that have no effect."""

GGUF_NEUTRAL: Final[Neutral] = {
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "attention.output_scale": (0, 1),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attention.shared_kv_layers": (0,),
    "rope.scaling.alpha": (0, 1),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    "use_parallel_residual": (False,),
    "swin_norm": (False,),
    "rescale_every_n_layers": (0,),
    "swiglu_clamp_exp": (0,),
    "swiglu_clamp_shexp": (0,),
    "activation_sparsity_scale": (0,),
    "full_attention_interval": (0, 1),
    "nextn_predict_layers": (0,),
}
"""Keys of every GGUF decoder, after its architecture and a dot."""

GGUF_EXPERTS_NEUTRAL: Final[Neutral] = {
    "expert_gating_func": (0, 1),  # 1: softmax
    "expert_shared_count": (0,),
    "expert_group_count": (0, 1),
    "expert_group_scale": (0, 1),
    "expert_weights_scale": (0, 1),
    "leading_dense_block_count": (0,),
    "interleave_moe_layer_step": (0, 1),
    "moe_every_n_layers": (0, 1),
    "router_logit_softcapping": (0,),
}
"""Keys of a GGUF mixture of experts, after its architecture and a dot."""

GGUF_ENCODER_NEUTRAL: Final[Neutral] = {
    **GGUF_NEUTRAL,
    "expert_count": (0,),
    "attention.causal": (False,),
    "attention.scale": (0,),
    "attention.sliding_window": (0,),
    "embedding_scale": (0, 1),
}
"""Keys of a GGUF encoder, after its architecture and a dot; decoders support some of them."""

HF_NEUTRAL: Final[Neutral] = {
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "attention_multiplier": (),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "scale_emb": (1,),
    "clip_qkv": (),
    "attention_chunk_size": (),
    "swiglu_alpha": (1.702,),
    "swiglu_limit": (7,),
}
"""Keys of a decoder's config.json."""


def refuse_unsupported(
    where: str, given: Mapping[str, object], neutral: Neutral, prefix: str = ""
) -> None:
    """Raise ModelError naming the first key of `neutral`, after `prefix`, whose value in `given` is
    not neutral. Every entry of a list must be neutral."""
    for key, values in neutral.items():
        value = given.get(prefix + key)
        if value is not None and not all(one in values for one in _entries(value)):
            raise ModelError(f"{where}: {prefix}{key} {_shown(value)} is not supported")


def _entries(value: object) -> list[object]:
    if isinstance(value, np.ndarray):
        return list(value.flat)
    return value if isinstance(value, list) else [value]


def _shown(value: object) -> object:
    """Return a value in the notation of JSON, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.tolist() if isinstance(value, np.ndarray) else value
