"""Helium: Llama with a rotary embedding of neighbouring components (2i, 2i + 1)."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, HfDecoder
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' HeliumConfig."""

    num_key_value_heads: int | None = 20
    head_dim: int | None = 128
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-8
    rope_theta: float | None = 1e5


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    plain = decoder_spec(config, where, uniform_layers(config, where))
    return replace(plain, output_bias=False, interleaved_rope=True)


FAMILY = Family(hf=HfDecoder("helium", "HeliumForCausalLM", Config, spec))
