"""ERNIE 4.5 MoE: ERNIE 4.5 with mixtures of experts and shared experts. Routers have a bias that
counts for the choice of experts beside softmax probabilities."""

from __future__ import annotations

import re
from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.kernels.routing import Routing
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_experts import EXPERT_KEYS, gguf_mixtures
from penstock.models.configuration.gguf_keys import Keys
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import num_layers
from penstock.models.decoder.experts_spec import ExpertsSpec, check_choice
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import HF_NAMES
from penstock.models.families import ernie4_5
from penstock.quant.gguf.gguf_file import GgufFile


class Config(ernie4_5.Config):
    """The keys of config.json, with the defaults of transformers' Ernie4_5_MoeConfig.
    `moe_layer_start_index`, `moe_layer_end_index`: the first and the last layer with experts; -1:
    the last layer of the model."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = None
    moe_num_experts: int = 64
    moe_k: int = 6
    moe_num_shared_experts: int | None = 2
    moe_intermediate_size: int = 1536
    moe_layer_start_index: int = 1
    moe_layer_end_index: int = -1
    moe_layer_interval: int = 1


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    if config.use_bias:
        raise ModelError(f"{where}: use_bias true is not supported")
    experts = _experts(config, where)
    layers, step = num_layers(config, where), config.moe_layer_interval
    if step < 1:
        raise ModelError(f"{where}: moe_layer_interval {step} is not positive")
    last = layers - 1 if config.moe_layer_end_index == -1 else config.moe_layer_end_index
    inside = range(config.moe_layer_start_index, last + 1)
    sparse = (layer in inside and (layer + 1) % step == 0 for layer in range(layers))
    plain = decoder_spec(
        config, where, tuple(LayerSpec(experts=experts if own else None) for own in sparse)
    )
    return replace(plain, interleaved_rope=True)


def _experts(config: Config, where: str) -> ExpertsSpec:
    check_choice(where, config.moe_k)
    shared = config.moe_num_shared_experts or 0
    if shared < 0:
        raise ModelError(f"{where}: moe_num_shared_experts {shared} is negative")
    return ExpertsSpec(
        config.moe_num_experts,
        Routing(config.moe_k, renormalize=True),
        config.moe_intermediate_size,
        correction_bias=True,
        shared_size=shared * config.moe_intermediate_size,
    )


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    spec = gguf_mixtures(file, gguf_decoder_spec(file, EXPERT_KEYS), "softmax")
    return replace(spec, interleaved_rope=True)


def gguf_keys(spec: DecoderSpec) -> Keys:
    """Return the key of the distance between mixtures, which llama.cpp needs."""
    return {"interleave_moe_layer_step": 1}


NAMES = replace(
    HF_NAMES,
    router_bias="mlp.moe_statics.e_score_correction_bias",
    ignored=re.compile(r".*\.rotary_emb\.inv_freq|model\.mtp_.*"),
)
FAMILY = Family(
    hf=HfDecoder("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", Config, spec, NAMES),
    gguf=GgufDecoder("ernie4_5-moe", gguf_spec, keys=gguf_keys),
)
