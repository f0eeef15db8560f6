"""Mistral Small 4: latent attention whose queries grow with the position, and mixtures of experts
chosen by a softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_latent import gguf_latent_keys, gguf_latent_spec
from penstock.models.configuration.hf_latent import HfLatentConfig, latent_decoder_spec
from penstock.models.configuration.hf_shared_experts import mixture_layers, shared_mixture
from penstock.models.decoder.block_specs import LayerAttention, QueryScaling
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import GGUF_LATENT_NAMES, HF_LATENT_NAMES


def _rope_parameters() -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }


class Config(HfLatentConfig):
    """The keys of config.json, with the defaults of transformers' Mistral4Config."""

    max_position_embeddings: int = 1_048_576
    kv_lora_rank: int = 256
    q_lora_rank: int | None = 1024
    qk_nope_head_dim: int = 64
    n_routed_experts: int | None = 128
    n_shared_experts: int | None = 1
    num_experts_per_tok: int | None = 4
    moe_intermediate_size: int | None = 2048
    norm_topk_prob: bool | None = True
    rope_parameters: dict[str, Any] | None = msgspec.field(default_factory=_rope_parameters)


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    experts = shared_mixture(config, where, "softmax", best_of_group=2)
    plain = latent_decoder_spec(config, where, mixture_layers(config, where, experts))
    scaling = _query_scaling(config.rope_scaling or config.rope_parameters or {}, where)
    if scaling is None:
        return plain
    attention = LayerAttention(query_scaling=scaling)
    return replace(
        plain, layers=tuple(replace(layer, attention=attention) for layer in plain.layers)
    )


def _query_scaling(rope: Mapping[str, Any], where: str) -> QueryScaling | None:
    """Return the growth of queries, or None. Raises ModelError naming the key at fault."""
    strength = rope.get("llama_4_scaling_beta")
    if strength is None:
        return None
    period = rope.get("original_max_position_embeddings")
    if not isinstance(strength, int | float) or not 0 <= strength < 100:
        raise ModelError(f"{where}: llama_4_scaling_beta {strength} is not in 0..100")
    if not isinstance(period, int) or period < 1:
        raise ModelError(f"{where}: original_max_position_embeddings {period} is not positive")
    return QueryScaling(float(strength), period)


FAMILY = Family(
    hf=HfDecoder("mistral4", "Mistral4ForCausalLM", Config, spec, HF_LATENT_NAMES),
    gguf=GgufDecoder("mistral4", gguf_latent_spec, GGUF_LATENT_NAMES, keys=gguf_latent_keys),
)
