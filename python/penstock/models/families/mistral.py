"""Mistral: Llama without biases, with one sliding window in all layers."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, HfDecoder
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' MistralConfig."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131_072
    sliding_window: int | None = 4096


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    layers = uniform_layers(config, where, config.sliding_window)
    return replace(decoder_spec(config, where, layers), qkv_bias=False, output_bias=False)


FAMILY = Family(hf=HfDecoder("mistral", "MistralForCausalLM", Config, spec), gguf_of="llama")
