"""GLM-4.5 and GLM-4.5-Air: grouped attention, whose heads are rotated in their first half, and
mixtures of experts as in DeepSeek V3."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_experts import EXPERT_KEYS, gguf_mixtures
from penstock.models.configuration.hf_decoder import partial_rotary_decoder_spec
from penstock.models.configuration.hf_shared_experts import (
    HfSharedExpertsConfig,
    mixture_layers,
    predicting_layers,
    shared_mixture,
)
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfSharedExpertsConfig):
    """The keys of config.json, with the defaults of transformers' Glm4MoeConfig."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    partial_rotary_factor: float | None = 0.5
    use_qk_norm: bool = False
    n_routed_experts: int | None = 128
    n_shared_experts: int | None = 1
    num_experts_per_tok: int | None = 8
    moe_intermediate_size: int | None = 1408
    norm_topk_prob: bool | None = True
    first_k_dense_replace: int | None = 1
    num_nextn_predict_layers: int | None = 1


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    experts = shared_mixture(config, where, "sigmoid", best_of_group=2)
    layers = tuple(LayerSpec(experts=own) for own in mixture_layers(config, where, experts))
    return replace(
        partial_rotary_decoder_spec(config, where, layers),
        output_bias=False,
        qk_norm=config.use_qk_norm,
        predicting_layers=predicting_layers(config, where),
    )


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    return gguf_mixtures(file, gguf_decoder_spec(file, EXPERT_KEYS), "sigmoid")


NAMES = replace(GGUF_NAMES, mlp_norm="post_attention_norm", attention_post_norm="")
FAMILY = Family(
    hf=HfDecoder("glm4_moe", "Glm4MoeForCausalLM", Config, spec),
    gguf=GgufDecoder("glm4moe", gguf_spec, NAMES),
)
