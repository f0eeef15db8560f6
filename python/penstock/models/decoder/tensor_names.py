"""The names of a decoder's tensors in a checkpoint. The modules in `families` override some of
them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class MtpNames:
    """The complete names of the tensors of an MTP head after `root`; "" for one that the file never
    has.

    - `root`: the prefix of all names; "": that of the layer after the last.
    - `layer`: the prefix of all names of its layer after `root`.
    - `fc`: the projection of the joined embedding and hidden state, both normalized.
    - `embedding_norm`, `hidden_norm`, `norm`: the norms of the embedding, of the hidden state and
      of the result.
    - `embedding`, `head`: those of the head alone; a file that lacks them uses the model's.
    - `may_lack_norm`: a file without `norm` uses the model's final norm.
    """

    root: str = ""
    layer: str = ""
    fc: str = "eh_proj.weight"
    embedding_norm: str = "enorm.weight"
    hidden_norm: str = "hnorm.weight"
    norm: str = "shared_head.norm.weight"
    embedding: str = "embed_tokens.weight"
    head: str = "shared_head.head.weight"
    may_lack_norm: bool = False


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The names of a decoder's tensors, without `.weight` or `.bias`.

    - `layer`: the prefix of all names of one layer; {} is the layer's index.
    - `q`, `k`, `v` and `gate`, `up`: equal names mean one tensor that stacks the projections by
      rows.
    - `attention_post_norm`, `mlp_post_norm`: the norms of outputs; see `DecoderSpec.norms`.
    - `expert_gate`, `expert_up`, `expert_down`: {} is the expert's index; a name without {} is one
      tensor [E, ...] for all experts of a layer.
      If `expert_gate` and `expert_up` are equal, it stacks both by rows: [E, 2 F, W].
    - `shared_gate`, `shared_up`, `shared_down`: the shared experts; equal names as for `gate`.
    - `shared_router`: the layer whose sigmoid scales the result of the shared experts.
    - `router_bias`, `expert_scale`, `sinks`, `rope_factors`: complete names of tensors, without
      `.weight` to be added.
    - `bare_norm`: the norm whose tensor has no `.weight`.
    - `mixer`: role of a tensor of a mixer -> its complete name after `layer`.
    - `layer_parts`, `model_parts`: role of a tensor of the blocks that only some decoders have ->
      its complete name after `layer`, or its complete name. {} is the index of one of several.
    - `ignored`: matches names of tensors that are not read.
    - `mtp`: the tensors of the MTP head; None if the family has none.
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
    shared_gate: str = ""
    shared_up: str = ""
    shared_down: str = ""
    shared_router: str = ""
    router_bias: str = ""
    expert_scale: str = ""
    rope_factors: str | None = None
    bare_norm: str = ""
    mixer: Mapping[str, str] = field(default_factory=dict)
    layer_parts: Mapping[str, str] = field(default_factory=dict)
    model_parts: Mapping[str, str] = field(default_factory=dict)
    ignored: re.Pattern[str] | None = None
    mtp: MtpNames | None = None

    def norm_weight(self, name: str) -> str:
        """Return the name of the tensor with the weight of the norm `name`."""
        is_bare = self.bare_norm and name.endswith(self.bare_norm)
        return name if is_bare else f"{name}.weight"


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
    shared_gate="mlp.shared_experts.gate_proj",
    shared_up="mlp.shared_experts.up_proj",
    shared_down="mlp.shared_experts.down_proj",
    router_bias="mlp.gate.e_score_correction_bias",
    ignored=re.compile(r".*\.rotary_emb\.inv_freq"),
    mtp=MtpNames(),
)

HF_LATENT_NAMES = replace(
    HF_NAMES,
    mixer={
        "q": "self_attn.q_proj.weight",
        "q_a": "self_attn.q_a_proj.weight",
        "q_a_bias": "self_attn.q_a_proj.bias",
        "q_norm": "self_attn.q_a_layernorm.weight",
        "q_b": "self_attn.q_b_proj.weight",
        "kv_a": "self_attn.kv_a_proj_with_mqa.weight",
        "kv_a_bias": "self_attn.kv_a_proj_with_mqa.bias",
        "kv_norm": "self_attn.kv_a_layernorm.weight",
        "kv_b": "self_attn.kv_b_proj.weight",
        "k_b": "self_attn.k_b_proj.weight",
        "v_b": "self_attn.v_b_proj.weight",
        "out": "self_attn.o_proj.weight",
        "out_bias": "self_attn.o_proj.bias",
    },
)
"""The tensor names of models with latent attention in Hugging Face folders."""

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
    shared_gate="ffn_gate_shexp",
    shared_up="ffn_up_shexp",
    shared_down="ffn_down_shexp",
    shared_router="ffn_gate_inp_shexp",
    router_bias="exp_probs_b.bias",
    rope_factors="rope_freqs.weight",
    mtp=MtpNames(
        fc="nextn.eh_proj.weight",
        embedding_norm="nextn.enorm.weight",
        hidden_norm="nextn.hnorm.weight",
        norm="nextn.shared_head_norm.weight",
        embedding="nextn.embed_tokens.weight",
        head="nextn.shared_head_head.weight",
        may_lack_norm=True,
    ),
)

GGUF_FUSED_GATE_UP_NAMES = replace(GGUF_NAMES, gate="ffn_up")
"""The GGUF tensor names of families whose gate and up projections are one tensor."""

GGUF_LATENT_NAMES = replace(
    GGUF_NAMES,
    mixer={
        "q": "attn_q.weight",
        "q_a": "attn_q_a.weight",
        "q_norm": "attn_q_a_norm.weight",
        "q_b": "attn_q_b.weight",
        "kv_a": "attn_kv_a_mqa.weight",
        "kv_norm": "attn_kv_a_norm.weight",
        "kv_b": "attn_kv_b.weight",
        "k_b": "attn_k_b.weight",
        "v_b": "attn_v_b.weight",
        "out": "attn_output.weight",
    },
)
"""The GGUF tensor names of models with latent attention."""

_GGUF_FUSED_EXPERTS = "ffn_gate_up_exps"

MLX_EXPERTS = "switch_mlp."
"""The name prefix of a layer's experts in folders written by MLX."""


def headless_names(names: TensorNames) -> TensorNames:
    """Return `names` as in a Hugging Face folder that was saved without a language-model head: the
    prefix `model.` is missing."""
    return rooted_names(names, "")


def rooted_names(names: TensorNames, root: str) -> TensorNames:
    """Return the `names` of a Hugging Face folder with another prefix of the model's tensors than
    `model.`."""
    parts = {role: root + name.removeprefix("model.") for role, name in names.model_parts.items()}
    return replace(
        names,
        embedding=root + names.embedding.removeprefix("model."),
        final_norm=root + names.final_norm.removeprefix("model."),
        layer=root + names.layer.removeprefix("model."),
        model_parts=parts,
    )


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


def gguf_names(names: TensorNames, tensors: Collection[str]) -> TensorNames:
    """Return `names` as in a GGUF file with these `tensors`, in which q, k and v are one tensor or
    three, and the gates and ups of all experts one tensor or two."""
    fused = _GGUF_FUSED_EXPERTS
    if any(name.endswith(f".{fused}.weight") for name in tensors):
        names = replace(names, expert_gate=fused, expert_up=fused)
    if "blk.0.attn_qkv.weight" not in tensors or "attn_qkv.weight" in names.mixer.values():
        return names
    return replace(names, q="attn_qkv", k="attn_qkv", v="attn_qkv")
