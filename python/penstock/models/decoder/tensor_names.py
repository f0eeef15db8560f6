"""Where each weight of a decoder lies in a checkpoint, as data; one constant for each format."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, replace

from penstock.models.decoder.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names without their `.weight` or `.bias`; those of a layer follow `layer`, in which {} is
    its index. The post norms are those of sandwich norms. Of experts, {} in a name is the number of
    one; a name without holds all of them, [E, ...]. q, k and v, or gate and up, of one name are one
    tensor, rows after rows. `sinks` is a whole name. `ignored` matches tensors that carry nothing
    (they are computed)."""

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

HF_SANDWICH_NAMES = replace(
    HF_NAMES,
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)

HF_MIXTRAL_NAMES = replace(
    HF_NAMES,
    router="block_sparse_moe.gate",
    expert_gate="block_sparse_moe.experts.{}.w1",
    expert_up="block_sparse_moe.experts.{}.w3",
    expert_down="block_sparse_moe.experts.{}.w2",
)

HF_GPT_OSS_NAMES = replace(
    HF_NAMES,
    sinks="self_attn.sinks",
    router="mlp.router",
    expert_gate="mlp.experts.gate_proj",
    expert_up="mlp.experts.up_proj",
    expert_down="mlp.experts.down_proj",
)
"""Those of experts are `GptOssCheckpoint`'."""

HF_PHI3_NAMES = replace(
    HF_NAMES,
    q="self_attn.qkv_proj",
    k="self_attn.qkv_proj",
    v="self_attn.qkv_proj",
    gate="mlp.gate_up_proj",
    up="mlp.gate_up_proj",
)

HF_GLM_NAMES = replace(HF_NAMES, gate="mlp.gate_up_proj", up="mlp.gate_up_proj")

HF_GLM4_NAMES = replace(
    HF_GLM_NAMES,
    attention_post_norm="post_self_attn_layernorm",
    mlp_post_norm="post_mlp_layernorm",
)

HF_OWN_NAMES = {
    "mixtral": HF_MIXTRAL_NAMES,
    "phi3": HF_PHI3_NAMES,
    "glm": HF_GLM_NAMES,
    "glm4": HF_GLM4_NAMES,
}
"""Of the architectures whose names are their own."""

LONGROPE_FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")
"""Of a GGUF file."""

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

GGUF_GPT_OSS_NAMES = replace(
    GGUF_NAMES, sinks="attn_sinks.weight", mlp_norm="post_attention_norm", attention_post_norm=""
)

GGUF_FUSED_NAMES = replace(GGUF_NAMES, gate="ffn_up")

GGUF_SEED_OSS_NAMES = replace(GGUF_NAMES, mlp_norm="post_attention_norm")


MLX_EXPERTS = "switch_mlp."
"""The module of a layer's experts where they are in one tensor."""


def hf_names(spec: DecoderSpec, *, bare: bool = False, stacked: bool = False) -> TensorNames:
    """Those of a Hugging Face folder. `bare`: of a model that was saved without its head, whose
    names lack their first part. `stacked`: all experts of a layer are in one tensor, as MLX writes
    them."""
    plain = HF_SANDWICH_NAMES if spec.sandwich_norms else HF_NAMES
    names = HF_OWN_NAMES.get(spec.architecture, plain)
    if spec.sinks:
        names = HF_GPT_OSS_NAMES
    if stacked:
        block = names.expert_gate.partition("experts.")[0] + MLX_EXPERTS
        names = replace(
            names,
            expert_gate=f"{block}gate_proj",
            expert_up=f"{block}up_proj",
            expert_down=f"{block}down_proj",
        )
    if not bare:
        return names
    return replace(names, embedding="embed_tokens", final_norm="norm", layer="layers.{}.")


def gguf_names(names: TensorNames, tensors: Container[str]) -> TensorNames:
    """Those of a GGUF file, of a family that has `names`: q, k and v are one tensor where that is
    there."""
    if "blk.0.attn_qkv.weight" not in tensors:
        return names
    return replace(names, q="attn_qkv", k="attn_qkv", v="attn_qkv")
