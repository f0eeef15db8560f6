"""Qwen3-MoE: Qwen3 with a mixture of experts in all or some layers, and an optional sliding window
in all layers."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_experts import QwenExpertsConfig, qwen_mixtures
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec


class Config(QwenExpertsConfig):
    """The keys of config.json, with the defaults of transformers' Qwen3MoeConfig."""

    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32_768
    sliding_window: int | None = 4096
    use_sliding_window: bool | None = None
    num_experts_per_tok: int | None = 8
    moe_intermediate_size: int | None = 768


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. There is no shared expert."""
    config = msgspec.structs.replace(config, shared_expert_intermediate_size=None)
    window = config.sliding_window if config.use_sliding_window else None
    layers = tuple(
        replace(layer, experts=experts)
        for layer, experts in zip(
            uniform_layers(config, where, window), qwen_mixtures(config, where), strict=True
        )
    )
    return replace(decoder_spec(config, where, layers), qk_norm=True)


FAMILY = Family(
    hf=HfDecoder("qwen3_moe", "Qwen3MoeForCausalLM", Config, spec),
    gguf=GgufDecoder("qwen3moe"),
)
