"""Qwen3-MoE: Qwen3 with a mixture of experts in all or some layers, and an optional sliding window
in all layers."""

from __future__ import annotations

from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_experts import HfExpertsConfig, expert_counts
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec, ExpertsSpec


class Config(HfExpertsConfig):
    """The keys of config.json, with the defaults of transformers' Qwen3MoeConfig."""

    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32_768
    sliding_window: int | None = 4096
    use_sliding_window: bool | None = None
    num_experts_per_tok: int | None = 8
    moe_intermediate_size: int | None = 768
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    window = config.sliding_window if config.use_sliding_window else None
    layers = tuple(
        replace(layer, experts=experts)
        for layer, experts in zip(
            uniform_layers(config, where, window), _experts(config, where), strict=True
        )
    )
    return replace(decoder_spec(config, where, layers), qk_norm=True)


def _experts(config: Config, where: str) -> list[ExpertsSpec | None]:
    """Return the mixture of experts of each layer, None for a dense layer. Raises ModelError naming
    the key at fault."""
    count, per_token = expert_counts(config, where)
    if config.moe_intermediate_size is None:
        raise ModelError(f"{where}: moe_intermediate_size is missing")
    step = config.decoder_sparse_step
    if step < 1:
        raise ModelError(f"{where}: decoder_sparse_step {step} is not positive")
    experts = ExpertsSpec(count, per_token, config.moe_intermediate_size, config.norm_topk_prob)
    dense = frozenset(config.mlp_only_layers or ())
    return [
        None if layer in dense or (layer + 1) % step else experts
        for layer in range(config.num_hidden_layers)
    ]


FAMILY = Family(
    hf=HfDecoder("qwen3_moe", "Qwen3MoeForCausalLM", Config, spec),
    gguf=GgufDecoder("qwen3moe"),
)
