"""Ministral: Mistral with the sliding window only in the layers that `layer_types` names, or in all
layers if the key is absent."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, HfDecoder
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import typed_layers
from penstock.models.decoder.spec import DecoderSpec


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' MinistralConfig."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131_072
    sliding_window: int | None = 4096


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    layers = typed_layers(config, where, config.sliding_window, lambda _: True)
    return replace(decoder_spec(config, where, layers), qkv_bias=False, output_bias=False)


FAMILY = Family(hf=HfDecoder("ministral", "MinistralForCausalLM", Config, spec))
