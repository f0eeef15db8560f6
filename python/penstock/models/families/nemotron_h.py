"""Nemotron-H and Nemotron 3 Nano: layers of one block each, which is Mamba2, attention without
position embedding, a feed-forward with relu^2 and no gate, or a mixture of such experts with
sigmoid shares and a shared expert."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_experts import EXPERT_KEYS, gguf_mixtures
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_shared_experts import HfSharedExpertsConfig, shared_mixture
from penstock.models.configuration.hybrid_layers import gguf_per_layer, layer_kinds
from penstock.models.configuration.mamba import GGUF_MAMBA_NAMES, gguf_mamba, mamba_names
from penstock.models.decoder.mixers.mamba2 import Mamba2Spec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, HF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile

_KINDS: Final = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "moe": "moe",
    "mlp": "mlp",
}
_PATTERN: Final = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


class Config(HfSharedExpertsConfig, kw_only=True):
    """The keys of config.json, with the defaults of transformers' NemotronHConfig.
    `hybrid_override_pattern`: an older form of `layers_block_type`, one character per layer."""

    num_hidden_layers: int = 0
    intermediate_size: int = 21_504
    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    layer_norm_epsilon: float = 1e-5
    max_position_embeddings: int = 4096
    mlp_hidden_act: str = "relu2"
    layers_block_type: list[str] | None = None
    hybrid_override_pattern: str | None = None
    ssm_state_size: int = 128
    mamba_num_heads: int = 128
    mamba_head_dim: int = 64
    mamba_hidden_act: str = "silu"
    n_groups: int = 8
    conv_kernel: int = 4
    time_step_min: float = 0.001
    use_conv_bias: bool = True
    use_bias: bool = False
    n_routed_experts: int | None = 8
    num_experts_per_tok: int | None = 2
    n_shared_experts: int | None = 1
    moe_intermediate_size: int | None = 7688
    moe_shared_expert_intermediate_size: int = 7688
    moe_latent_size: int | None = None
    norm_topk_prob: bool | None = True


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    _refuse(config, where)
    kinds = _kinds(config, where)
    layers = {
        "mamba": LayerSpec(mixer=_mamba(config), blocks="mixer"),
        "attention": LayerSpec(rotary=False, blocks="mixer"),
        "mlp": LayerSpec(blocks="feed_forward"),
    }
    if "moe" in kinds:
        layers["moe"] = _mixture(config, where)
    llama = msgspec.structs.replace(
        config, rms_norm_eps=config.layer_norm_epsilon, hidden_act="silu", attention_bias=False
    )
    plain = decoder_spec(llama, where, tuple(layers[kind] for kind in kinds))
    return replace(plain, activation="relu_squared", gated=False)


def _refuse(config: Config, where: str) -> None:
    """Refuse what is not supported. Raises ModelError naming the key."""
    wanted: dict[str, Any] = {
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "moe_latent_size": None,
    }
    for key, value in wanted.items():
        given = getattr(config, key)
        if given != value:
            raise ModelError(f"{where}: {key} {given!r} is not supported, only {value!r}")


def _kinds(config: Config, where: str) -> list[str]:
    if config.layers_block_type is not None:
        return layer_kinds(config.layers_block_type, None, _KINDS, where, "layers_block_type")
    if config.hybrid_override_pattern is None:
        raise ModelError(f"{where}: layers_block_type is missing")
    pattern = list(config.hybrid_override_pattern)
    return layer_kinds(pattern, None, _PATTERN, where, "hybrid_override_pattern")


def _mamba(config: Config) -> Mamba2Spec:
    return Mamba2Spec(
        heads=config.mamba_num_heads,
        head_dim=config.mamba_head_dim,
        groups=config.n_groups,
        state_dim=config.ssm_state_size,
        taps=config.conv_kernel,
        norm_eps=config.layer_norm_epsilon,
        conv_bias=config.use_conv_bias,
        in_bias=config.use_bias,
        out_bias=config.use_bias,
        dt_limits=(config.time_step_min, math.inf),
    )


def _mixture(config: Config, where: str) -> LayerSpec:
    experts = shared_mixture(config, where, "sigmoid", best_of_group=2)
    experts = replace(
        experts,
        activation="relu_squared",
        gated=False,
        shared_size=config.moe_shared_expert_intermediate_size,
    )
    return LayerSpec(experts=experts, blocks="feed_forward")


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. A layer with a feed-forward length has that block,
    one with KV heads has attention, and another one has Mamba2."""
    architecture = file.text("general.architecture")
    plain = gguf_decoder_spec(file, family_keys=EXPERT_KEYS)
    count = len(plain.layers)
    heads = gguf_per_layer(file, f"{architecture}.attention.head_count_kv", count)
    lengths = gguf_per_layer(file, f"{architecture}.feed_forward_length", count)
    if heads is None or lengths is None:
        raise ModelError(
            f"{file.path}: {architecture}.attention.head_count_kv and"
            f" {architecture}.feed_forward_length must have one number per layer"
        )
    if plain.layers[0].experts is not None:
        sparse = [length > 0 for length in lengths]
        plain = gguf_mixtures(file, plain, "sigmoid", renormalize=False, sparse=sparse)
    mamba = LayerSpec(mixer=gguf_mamba(file, plain.norm_eps), blocks="mixer")
    layers = []
    for layer, own_heads, length in zip(plain.layers, heads, lengths, strict=True):
        if length:
            layers.append(_feed_forward(layer))
        else:
            layers.append(LayerSpec(rotary=False, blocks="mixer") if own_heads else mamba)
    return replace(
        plain,
        layers=tuple(layers),
        activation="relu_squared",
        gated=False,
        qk_norm=False,
        norm_kind="rms",  # though llama.cpp requires the eps of a LayerNorm
    )


def _feed_forward(layer: LayerSpec) -> LayerSpec:
    if layer.experts is None:
        return LayerSpec(blocks="feed_forward")
    experts = replace(layer.experts, activation="relu_squared", gated=False)
    return LayerSpec(experts=experts, blocks="feed_forward")


NAMES = replace(
    HF_NAMES,
    embedding="backbone.embeddings",
    final_norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    attention_norm="norm",
    q="mixer.q_proj",
    k="mixer.k_proj",
    v="mixer.v_proj",
    output="mixer.o_proj",
    mlp_norm="norm",
    up="mixer.up_proj",
    down="mixer.down_proj",
    router="mixer.gate",
    router_bias="mixer.gate.e_score_correction_bias",
    expert_up="mixer.experts.{}.up_proj",
    expert_down="mixer.experts.{}.down_proj",
    shared_up="mixer.shared_experts.up_proj",
    shared_down="mixer.shared_experts.down_proj",
    mixer=mamba_names("mixer."),
)
GGUF_HYBRID_NAMES = replace(GGUF_NAMES, mlp_norm="attn_norm", mixer=GGUF_MAMBA_NAMES)
FAMILY = Family(
    hf=HfDecoder("nemotron_h", "NemotronHForCausalLM", Config, spec, NAMES, is_reranker=False),
    gguf=GgufDecoder("nemotron_h", gguf_spec, GGUF_HYBRID_NAMES, is_written=False),
)
