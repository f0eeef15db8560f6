"""The names of a decoder's tensors in a checkpoint. Files in `families` override some of them."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names without `.weight` or `.bias`.

    Names of a layer follow `layer`, in which {} is the layer's index. {} in the name of an expert
    is its number; a name without {} holds all experts of a layer, [E, ...]. If q, k and v, or gate
    and up, have the same name, they are one tensor, stacked by rows. The post norms are those of
    `DecoderSpec.sandwich_norms`. `sinks` and `rope_factors` are whole names. `ignored` matches
    tensors that are computed, not read."""

    embedding: str
    final_norm: str
    head: str
    layer: str
    attention_norm: str
    q: str
    k: str
    v: str
    output: str
    q_norm: str
    k_norm: str
    mlp_norm: str
    gate: str
    up: str
    down: str
    attention_post_norm: str = ""
    mlp_post_norm: str = ""
    sinks: str = ""
    router: str = ""
    expert_gate: str = ""
    expert_up: str = ""
    expert_down: str = ""
    rope_factors: str | None = None
    ignored: re.Pattern[str] | None = None


HF_NAMES = TensorNames(
    embedding="model.embed_tokens",
    final_norm="model.norm",
    head="lm_head",
    layer="model.layers.{}.",
    attention_norm="input_layernorm",
    q="self_attn.q_proj",
    k="self_attn.k_proj",
    v="self_attn.v_proj",
    output="self_attn.o_proj",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    mlp_norm="post_attention_layernorm",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    router="mlp.gate",
    expert_gate="mlp.experts.{}.gate_proj",
    expert_up="mlp.experts.{}.up_proj",
    expert_down="mlp.experts.{}.down_proj",
    ignored=re.compile(r".*\.rotary_emb\.inv_freq"),
)

LONGROPE_FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")
"""The tensors of a GGUF file with the short and the long factors of LongRoPE."""

GGUF_NAMES = TensorNames(
    embedding="token_embd",
    final_norm="output_norm",
    head="output",
    layer="blk.{}.",
    attention_norm="attn_norm",
    q="attn_q",
    k="attn_k",
    v="attn_v",
    output="attn_output",
    q_norm="attn_q_norm",
    k_norm="attn_k_norm",
    mlp_norm="ffn_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    attention_post_norm="post_attention_norm",
    mlp_post_norm="post_ffw_norm",
    router="ffn_gate_inp",
    expert_gate="ffn_gate_exps",
    expert_up="ffn_up_exps",
    expert_down="ffn_down_exps",
    rope_factors="rope_freqs.weight",
)

GGUF_FUSED_GATE_UP_NAMES = replace(GGUF_NAMES, gate="ffn_up")
"""The names of families whose gate and up projections are one tensor."""

MLX_EXPERTS = "switch_mlp."
"""The module of a layer's experts in folders that MLX wrote."""


def headless_names(names: TensorNames) -> TensorNames:
    """Return `names` of a Hugging Face folder that was saved without a language-model head: they
    lack their first part."""
    return replace(names, embedding="embed_tokens", final_norm="norm", layer="layers.{}.")


def mlx_names(names: TensorNames) -> TensorNames:
    """Return `names` of a Hugging Face folder that MLX wrote: all experts of a layer are one
    tensor."""
    block = names.expert_gate.partition("experts.")[0] + MLX_EXPERTS
    return replace(
        names,
        expert_gate=f"{block}gate_proj",
        expert_up=f"{block}up_proj",
        expert_down=f"{block}down_proj",
    )


def gguf_names(names: TensorNames, tensors: Container[str]) -> TensorNames:
    """Return `names` of a GGUF file with these tensors: q, k and v may be one tensor."""
    if "blk.0.attn_qkv.weight" not in tensors:
        return names
    return replace(names, q="attn_qkv", k="attn_qkv", v="attn_qkv")
