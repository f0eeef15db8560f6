"""Granite MoE: Granite with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_experts import EXPERT_KEYS, gguf_mixtures
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_experts import HfExpertsConfig, softmax_choice
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import HF_NAMES
from penstock.models.families import granite
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfExpertsConfig):
    """The keys of config.json, with the defaults of transformers' GraniteMoeConfig.
    `shared_intermediate_size`: the width of the shared feed-forward of GraniteMoeShared."""

    embedding_multiplier: float = 1.0
    attention_multiplier: float | None = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    num_local_experts: int | None = 8
    num_experts_per_tok: int | None = 2
    shared_intermediate_size: int | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    count, routing = softmax_choice(config, where, renormalize=True)
    shared = config.shared_intermediate_size or 0
    experts = ExpertsSpec(count, routing, config.intermediate_size, shared_size=shared)
    layers = tuple(replace(layer, experts=experts) for layer in uniform_layers(config, where))
    return granite.with_multipliers(
        replace(decoder_spec(config, where, layers), attention_scale=config.attention_multiplier),
        where,
        embedding=config.embedding_multiplier,
        residual=config.residual_multiplier,
        logits_divisor=config.logits_scaling,
    )


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    return gguf_mixtures(file, granite.gguf_spec(file, EXPERT_KEYS), "softmax")


NAMES = replace(
    HF_NAMES,
    router="block_sparse_moe.router.layer",
    expert_gate="block_sparse_moe.input_linear",
    expert_up="block_sparse_moe.input_linear",
    expert_down="block_sparse_moe.output_linear",
    shared_gate="shared_mlp.input_linear",
    shared_up="shared_mlp.input_linear",
    shared_down="shared_mlp.output_linear",
)
FAMILY = Family(
    hf=HfDecoder("granitemoe", "GraniteMoeForCausalLM", Config, spec, NAMES),
    gguf=GgufDecoder("granitemoe", gguf_spec, permuted_qk=True, keys=granite.gguf_keys),
)
