"""Keys of a model's files that change what it computes, and that nothing here computes.

A file may name one with a value that asks for nothing; any other value is refused by its key:
served all the same, the model would answer wrongly. Keys that are in none of these tables and that
nothing reads have no influence on results (names, licences, what only training needs), or come with
tensors that are refused by their names. Of GGUF the tables follow what llama.cpp knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np

from penstock.base.errors import ModelError

Neutral: TypeAlias = Mapping[str, tuple[float, ...]]
"""Key -> the values that ask for nothing."""

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
"""Of every architecture, after its name and a dot."""

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
"""Of a mixture of experts."""

GGUF_ENCODER_NEUTRAL: Final[Neutral] = {
    **GGUF_NEUTRAL,
    "expert_count": (0,),
    "attention.causal": (False,),
    "attention.scale": (0,),
    "attention.sliding_window": (0,),
    "embedding_scale": (0, 1),
}
"""Of an encoder, which decoders know more of."""

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
"""Of a decoder's config.json."""


def refuse_unsupported(
    where: str, given: Mapping[str, object], neutral: Neutral, prefix: str = ""
) -> None:
    """Raise ModelError naming the first key of `neutral`, after `prefix`, whose value in `given`
    asks for something. Of a list, each entry counts."""
    for key, values in neutral.items():
        value = given.get(prefix + key)
        if value is not None and not all(one in values for one in _entries(value)):
            raise ModelError(f"{where}: {prefix}{key} {_shown(value)} is not supported")


def _entries(value: object) -> list[object]:
    if isinstance(value, np.ndarray):
        return list(value.flat)
    return value if isinstance(value, list) else [value]


def _shown(value: object) -> object:
    """As the file would write it, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.tolist() if isinstance(value, np.ndarray) else value
