"""Reads the keys of config.json that describe a multi-head latent attention."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_shared_experts import (
    HfSharedExpertsConfig,
    predicting_layers,
)
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.mixers.latent_attention import LatentAttentionSpec
from penstock.models.decoder.rope_spec import YarnScaling
from penstock.models.decoder.spec import DecoderSpec, LayerSpec


class HfLatentConfig(HfSharedExpertsConfig):
    """The keys of a model with latent attention and shared experts, with the defaults of
    transformers' DeepseekV3Config. `rope_interleave`: the file has rotated components in pairs."""

    kv_lora_rank: int = 512
    q_lora_rank: int | None = 1536
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int | None = 128
    rope_interleave: bool | None = True


def latent_decoder_spec(
    config: HfLatentConfig, where: str, mixtures: list[ExpertsSpec | None]
) -> DecoderSpec:
    """Return the spec of a decoder with latent attention. `mixtures`: the mixture of experts of
    each layer, None for a dense layer. Raises ModelError naming the key at fault."""
    rotary = dict(config.rope_parameters or {})
    rotary.pop("partial_rotary_factor", None)  # qk_rope_head_dim says which elements are rotated
    rotated = msgspec.structs.replace(
        config,
        head_dim=config.qk_rope_head_dim,
        partial_rotary_factor=None,
        rope_parameters=rotary,
        num_key_value_heads=None,
    )
    plain = decoder_spec(rotated, where, (LayerSpec(),))
    query_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
    mixer = LatentAttentionSpec(
        heads=config.num_attention_heads,
        q_rank=_rank(config, where),
        kv_rank=config.kv_lora_rank,
        plain_dim=config.qk_nope_head_dim,
        rotated_dim=config.qk_rope_head_dim,
        value_dim=config.v_head_dim or 0,
        scale=_scale(rotated, plain, query_dim),
        biased=config.attention_bias,
        rotation="halves" if config.rope_interleave is False else "pairs",
    )
    mixer.check_sizes(where)
    return replace(
        plain,
        head_dim=query_dim,
        qkv_bias=False,
        output_bias=False,
        layers=tuple(LayerSpec(experts=experts, mixer=mixer) for experts in mixtures),
        predicting_layers=predicting_layers(config, where),
    )


def _rank(config: HfLatentConfig, where: str) -> int:
    if config.q_lora_rank is None:
        return 0
    if config.q_lora_rank < 1:
        raise ModelError(f"{where}: q_lora_rank {config.q_lora_rank} is not positive")
    return config.q_lora_rank


def _scale(config: HfLatentConfig, spec: DecoderSpec, query_dim: int) -> float:
    """Return the factor of scores. With YaRN it grows with `mscale_all_dim`, so that softmax is as
    sharp as before scaling."""
    scale = 1 / math.sqrt(max(query_dim, 1))
    rope = config.rope_scaling or config.rope_parameters or {}
    given = rope.get("mscale_all_dim")
    if not isinstance(spec.rope.scaling, YarnScaling) or not isinstance(given, (int, float)):
        return scale
    growth = 0.1 * given * math.log(max(spec.rope.scaling.factor, 1.0))
    return scale * (1 + growth) ** 2
