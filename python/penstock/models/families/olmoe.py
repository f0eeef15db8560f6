"""OLMoE: Llama with a mixture of experts in every layer, and norms of all query heads and of all
key heads together."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_experts import EXPERT_KEYS, gguf_mixtures
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_experts import HfExpertsConfig, softmax_choice
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfExpertsConfig):
    """The keys of config.json, with the defaults of transformers' OlmoeConfig."""

    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    num_experts: int | None = 64
    num_experts_per_tok: int | None = 8
    norm_topk_prob: bool = False


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    count, routing = softmax_choice(config, where, config.norm_topk_prob)
    experts = ExpertsSpec(count, routing, config.intermediate_size)
    layers = tuple(replace(layer, experts=experts) for layer in uniform_layers(config, where))
    return replace(decoder_spec(config, where, layers), qk_norm=True, qk_norm_form="all")


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    plain = gguf_mixtures(file, gguf_decoder_spec(file, EXPERT_KEYS), "softmax", renormalize=False)
    return replace(plain, qk_norm=True, qk_norm_form="all")


FAMILY = Family(
    hf=HfDecoder("olmoe", "OlmoeForCausalLM", Config, spec),
    gguf=GgufDecoder("olmoe", gguf_spec),
)
