"""Keys of a model's configuration that change its results but that the server does not support.

A file may have such a key with a value that has no effect. For any other value the model is refused
with an error that names the key, because it would load and answer wrongly. A key that no table
lists and no code reads does not change results (names, licences, training settings), or comes with
tensors that are refused by name. The GGUF tables follow llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np

from penstock.base.errors import ModelError

Neutral: TypeAlias = Mapping[str, tuple[float, ...]]
"""Key -> the values with which it has no effect."""

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
"""Keys of every GGUF decoder, without the "<architecture>." prefix."""

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
"""Keys of a GGUF mixture of experts, without the "<architecture>." prefix."""

GGUF_ENCODER_NEUTRAL: Final[Neutral] = {
    **GGUF_NEUTRAL,
    "expert_count": (0,),
    "attention.causal": (False,),
    "attention.scale": (0,),
    "attention.sliding_window": (0,),
    "embedding_scale": (0, 1),
}
"""Keys of a GGUF encoder, without the "<architecture>." prefix. Decoders support some of these
keys."""

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
"""Keys of every decoder's config.json."""


def refuse_unsupported(
    where: str, given: Mapping[str, object], neutral: Neutral, prefix: str = ""
) -> None:
    """Check that each key of `neutral` is absent from `given` or has a neutral value there. Every
    entry of a list must be neutral. `prefix`: precedes each key in `given`. Raises ModelError
    naming the first key with another value."""
    for key, values in neutral.items():
        value = given.get(prefix + key)
        if value is not None and not all(one in values for one in _entries(value)):
            raise ModelError(f"{where}: {prefix}{key} {_shown(value)} is not supported")


def _entries(value: object) -> list[object]:
    if isinstance(value, np.ndarray):
        return list(value.flat)
    return value if isinstance(value, list) else [value]


def _shown(value: object) -> object:
    """Format a value for an error message, as in JSON."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.tolist() if isinstance(value, np.ndarray) else value
