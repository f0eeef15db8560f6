"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, HfDecoder
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_experts import HfExpertsConfig, softmax_choice
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import HF_NAMES


class Config(HfExpertsConfig):
    """The keys of config.json, with the defaults of transformers' MixtralConfig."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    rope_theta: float | None = 1e6
    num_local_experts: int | None = 8
    num_experts_per_tok: int | None = 2
    sliding_window: int | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    layers = uniform_layers(config, where, config.sliding_window)
    count, routing = softmax_choice(config, where, renormalize=True)
    experts = ExpertsSpec(count, routing, config.intermediate_size)
    layers = tuple(replace(layer, experts=experts) for layer in layers)
    return replace(decoder_spec(config, where, layers), qkv_bias=False, output_bias=False)


NAMES = replace(
    HF_NAMES,
    router="block_sparse_moe.gate",
    expert_gate="block_sparse_moe.experts.{}.w1",
    expert_up="block_sparse_moe.experts.{}.w3",
    expert_down="block_sparse_moe.experts.{}.w2",
)
FAMILY = Family(hf=HfDecoder("mixtral", "MixtralForCausalLM", Config, spec, NAMES), gguf_of="llama")
