"""OLMo Hybrid: gated delta nets with norms of the inputs of their blocks, and OLMo 3's attention in
every fourth layer, with norms of the outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.configuration.family import Family, HfDecoder
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hybrid_layers import check_count, every_nth, layer_kinds
from penstock.models.decoder.mixers.gated_delta import DeltaLayout, GatedDeltaSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import HF_NAMES

_KINDS: Final = {"linear_attention": "delta", "full_attention": "attention"}
_INTERVAL: Final = 4
_NORM_EPS: Final = 1e-5
"""The eps of the gated norms; `rms_norm_eps` in the config is that of the other norms."""
_RENAMED: Final = {
    "attention_layer_norm": "input_layernorm",
    "feedforward_layer_norm": "post_attention_layernorm",
}
"""The names of norms in published folders -> those of transformers' modules."""


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' OlmoHybridConfig."""

    max_position_embeddings: int = 65_536
    linear_conv_kernel_dim: int = 4
    linear_num_key_heads: int | None = None
    linear_num_value_heads: int | None = None
    linear_key_head_dim: int | None = None
    linear_value_head_dim: int | None = None
    linear_allow_neg_eigval: bool = True


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. A rotary base of null means no position
    embedding."""
    groups = _given(config.linear_num_key_heads, config.num_attention_heads)
    key_dim = _given(config.linear_key_head_dim, int(0.75 * config.hidden_size / max(groups, 1)))
    net = GatedDeltaSpec(
        groups=groups,
        heads=_given(config.linear_num_value_heads, config.num_attention_heads),
        key_dim=key_dim,
        value_dim=_given(config.linear_value_head_dim, 2 * key_dim),
        taps=config.linear_conv_kernel_dim,
        norm_eps=_NORM_EPS,
        beta_scale=2.0 if config.linear_allow_neg_eigval else 1.0,
        layout=DeltaLayout("separate"),
    )
    parameters = config.rope_parameters or {}
    rotary = not ("rope_theta" in parameters and parameters["rope_theta"] is None)
    layers = tuple(
        LayerSpec(mixer=net, norms="pre") if kind == "delta" else LayerSpec(rotary=rotary)
        for kind in _kinds(config, where)
    )
    plain = decoder_spec(config, where, layers)
    return replace(plain, norms="post", qk_norm=True, qk_norm_form="all")


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


def _kinds(config: Config, where: str) -> list[str]:
    layers = config.num_hidden_layers
    check_count(layers, where, "num_hidden_layers")
    if config.layer_types is not None:
        return layer_kinds(config.layer_types, layers, _KINDS, where, "layer_types")
    attends = every_nth(layers, _INTERVAL, where, "layer_types")
    attends[-1] |= not any(attends)
    return ["attention" if own else "delta" for own in attends]


def tensor_name(name: str) -> str:
    """Return the name by which transformers knows a tensor of a folder."""
    for older, newer in _RENAMED.items():
        name = name.replace(f".{older}.", f".{newer}.")
    return name


NAMES: Final = replace(
    HF_NAMES,
    attention_post_norm="post_attention_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
    mixer={
        "q": "linear_attn.q_proj.weight",
        "k": "linear_attn.k_proj.weight",
        "v": "linear_attn.v_proj.weight",
        "z": "linear_attn.g_proj.weight",
        "b": "linear_attn.b_proj.weight",
        "a": "linear_attn.a_proj.weight",
        "q_conv": "linear_attn.q_conv1d.weight",
        "k_conv": "linear_attn.k_conv1d.weight",
        "v_conv": "linear_attn.v_conv1d.weight",
        "decay": "linear_attn.A_log",
        "dt_bias": "linear_attn.dt_bias",
        "norm": "linear_attn.o_norm.weight",
        "out": "linear_attn.o_proj.weight",
    },
)
FAMILY = Family(
    hf=HfDecoder(
        "olmo_hybrid",
        "OlmoHybridForCausalLM",
        Config,
        spec,
        NAMES,
        is_reranker=False,
        tensor_name=tensor_name,
    )
)
