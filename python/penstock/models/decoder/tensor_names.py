"""The names of a decoder's tensors in a checkpoint. The modules in `families` override some of
them."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The names of a decoder's tensors, without `.weight` or `.bias`.

    - `layer`: the prefix of all names of one layer; {} is the layer's index.
    - `q`, `k`, `v` and `gate`, `up`: equal names mean one tensor that stacks the projections by
      rows.
    - `attention_post_norm`, `mlp_post_norm`: the norms of outputs; see `DecoderSpec.norms`.
    - `expert_gate`, `expert_up`, `expert_down`: {} is the expert's index; a name without {} is one
      tensor [E, ...] for all experts of a layer.
    - `sinks`, `rope_factors`: complete names of tensors, without `.weight` to be added.
    - `mixer`: role of a tensor of a mixer -> its complete name after `layer`.
    - `ignored`: matches names of tensors that are not read.
    """

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
    mixer: Mapping[str, str] = field(default_factory=dict)
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
"""The GGUF tensors that hold the short and the long factors of LongRoPE."""

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
"""The GGUF tensor names of families whose gate and up projections are one tensor."""

MLX_EXPERTS = "switch_mlp."
"""The name prefix of a layer's experts in folders written by MLX."""


def headless_names(names: TensorNames) -> TensorNames:
    """Return `names` as in a Hugging Face folder that was saved without a language-model head: the
    prefix `model.` is missing."""
    return replace(names, embedding="embed_tokens", final_norm="norm", layer="layers.{}.")


def mlx_names(names: TensorNames) -> TensorNames:
    """Return `names` as in a Hugging Face folder written by MLX: all experts of a layer are one
    tensor."""
    return stacked_names(names, names.expert_gate.partition("experts.")[0] + MLX_EXPERTS)


def stacked_names(names: TensorNames, block: str) -> TensorNames:
    """Return `names` with one tensor for all experts of a layer, after the prefix `block`."""
    return replace(
        names,
        expert_gate=f"{block}gate_proj",
        expert_up=f"{block}up_proj",
        expert_down=f"{block}down_proj",
    )


def gguf_names(names: TensorNames, tensors: Container[str]) -> TensorNames:
    """Return `names` as in a GGUF file with these `tensors`, in which q, k and v are one tensor or
    three."""
    if "blk.0.attn_qkv.weight" not in tensors:
        return names
    return replace(names, q="attn_qkv", k="attn_qkv", v="attn_qkv")
