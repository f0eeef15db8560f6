"""Granite 4: Mamba2 in most or no layers, attention that may have no position embedding, Granite's
multipliers, and a feed-forward that may have a mixture of experts beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_experts import EXPERT_KEYS, gguf_mixtures
from penstock.models.configuration.gguf_keys import Keys, kv_heads_of_each
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_experts import softmax_choice
from penstock.models.configuration.hybrid_layers import check_count, gguf_per_layer, layer_kinds
from penstock.models.configuration.mamba import (
    GGUF_MAMBA_NAMES,
    MambaConfig,
    gguf_mamba,
    gguf_mamba_keys,
    mamba_names,
    mamba_of,
)
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, HF_NAMES
from penstock.models.families import granite
from penstock.quant.gguf.gguf_file import GgufFile

_KINDS: Final = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}
_SHARED: Final = ("shared_mlp.input_linear", "shared_mlp.output_linear")
_KEYS: Final = EXPERT_KEYS | {"residual_scale", "logit_scale"}


class Config(MambaConfig):
    """The keys of config.json, with the defaults of transformers' GraniteMoeHybridConfig.
    `shared_intermediate_size`: the width of the feed-forward. `intermediate_size`: that of an
    expert. `num_local_experts`: 0: there are none."""

    num_local_experts: int | None = 8
    num_experts_per_tok: int | None = 2
    shared_intermediate_size: int = 1024
    position_embedding_type: str | None = None
    embedding_multiplier: float | None = 1.0
    attention_multiplier: float | None = 1.0
    residual_multiplier: float | None = 1.0
    logits_scaling: float | None = 1.0


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    check_count(config.num_hidden_layers, where, "num_hidden_layers")
    types = config.layer_types or ["mamba"] * config.num_hidden_layers
    kinds = layer_kinds(types, config.num_hidden_layers, _KINDS, where, "layer_types")
    attention = LayerSpec(rotary=config.position_embedding_type == "rope")
    mamba = LayerSpec(mixer=mamba_of(config, where)) if "mamba" in kinds else attention
    experts = _experts(config, where)
    layers = tuple(
        replace(mamba if kind == "mamba" else attention, experts=experts) for kind in kinds
    )
    dense = msgspec.structs.replace(
        config, intermediate_size=config.shared_intermediate_size, mlp_bias=False
    )
    return granite.with_multipliers(
        replace(decoder_spec(dense, where, layers), attention_scale=config.attention_multiplier),
        where,
        embedding=_factor(config.embedding_multiplier),
        residual=_factor(config.residual_multiplier),
        logits_divisor=_factor(config.logits_scaling),
    )


def _experts(config: Config, where: str) -> ExpertsSpec | None:
    if config.num_local_experts == 0:
        return None
    count, routing = softmax_choice(config, where, renormalize=True)
    shared = config.shared_intermediate_size
    return ExpertsSpec(count, routing, config.intermediate_size, shared_size=shared)


def _factor(given: float | None) -> float:
    return 1.0 if given is None else given


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. Layers without KV heads are Mamba2. A scale of 0
    means "not set". If `rope.scaling.finetuned` is false, there is no rotary embedding."""
    architecture = file.text("general.architecture")
    plain = gguf_decoder_spec(file, family_keys=_KEYS)
    if plain.layers[0].experts is not None:
        plain = gguf_mixtures(file, plain, "softmax")
    count = len(plain.layers)
    heads = gguf_per_layer(file, f"{architecture}.attention.head_count_kv", count) or [1] * count
    mamba = None if all(heads) else gguf_mamba(file, plain.norm_eps)
    rotary = file.boolean(f"{architecture}.rope.scaling.finetuned") is not False
    layers = tuple(
        replace(layer, rotary=rotary, mixer=None if own else mamba)
        for layer, own in zip(plain.layers, heads, strict=True)
    )
    biased = any(name.endswith(".attn_q.bias") for name in file.tensors)
    return granite.with_multipliers(
        replace(plain, layers=layers, qk_norm=False, qkv_bias=biased, output_bias=biased),
        str(file.path),
        embedding=plain.embedding_scale,
        residual=file.real(f"{architecture}.residual_scale", 0.0) or 1.0,
        logits_divisor=file.real(f"{architecture}.logit_scale", 0.0) or 1.0,
    )


def gguf_keys(spec: DecoderSpec) -> Keys:
    """Return the keys that `gguf_spec` reads. llama.cpp takes the width of experts from the key of
    the feed-forward."""
    attention = [layer.rotary for layer in spec.layers if layer.has_attention]
    experts = spec.layers[0].experts
    width = spec.intermediate_size if experts is None else experts.intermediate_size
    return {
        "feed_forward_length": width,
        **granite.gguf_keys(spec),
        **kv_heads_of_each(spec),
        **gguf_mamba_keys(spec),
        "rope.scaling.finetuned": all(attention),
    }


NAMES = replace(
    HF_NAMES,
    gate=_SHARED[0],
    up=_SHARED[0],
    down=_SHARED[1],
    router="block_sparse_moe.router.layer",
    expert_gate="block_sparse_moe.input_linear",
    expert_up="block_sparse_moe.input_linear",
    expert_down="block_sparse_moe.output_linear",
    shared_gate=_SHARED[0],
    shared_up=_SHARED[0],
    shared_down=_SHARED[1],
    mixer=mamba_names("mamba."),
)
FAMILY = Family(
    hf=HfDecoder(
        "granitemoehybrid", "GraniteMoeHybridForCausalLM", Config, spec, NAMES, is_reranker=False
    ),
    gguf=GgufDecoder(
        "granitehybrid",
        gguf_spec,
        replace(GGUF_NAMES, mixer=GGUF_MAMBA_NAMES),
        permuted_qk=True,
        keys=gguf_keys,
    ),
)
