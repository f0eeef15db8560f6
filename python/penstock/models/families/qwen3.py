"""Qwen3: Qwen2 without biases and with a norm on each query and key head."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.families import qwen2


class Config(qwen2.Config):
    """The keys of config.json, with the defaults of transformers' Qwen3Config."""

    head_dim: int | None = 128


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    layers = qwen2.qwen_layers(config, where)
    return replace(decoder_spec(config, where, layers), qk_norm=True)


FAMILY = Family(
    hf=HfDecoder("qwen3", "Qwen3ForCausalLM", Config, spec),
    gguf=GgufDecoder("qwen3"),
)
