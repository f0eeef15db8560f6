"""OLMo 3: OLMo 2 with a sliding window in three of four layers, which have no RoPE scaling. The
GGUF architecture is `olmo2`."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, HfDecoder
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import all_but_last_of, typed_layers
from penstock.models.configuration.hf_rope import local_rope_spec
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.families import olmo2


class Config(olmo2.Config):
    """The keys of config.json, with the defaults of transformers' Olmo3Config."""

    rope_theta: float | None = 5e5
    sliding_window: int | None = 4096


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    is_sliding = all_but_last_of(4, where)
    layers = typed_layers(config, where, config.sliding_window, is_sliding)
    plain = decoder_spec(config, where, layers)
    local = local_rope_spec(config, where, plain.rope.theta)
    return olmo2.with_norms(replace(plain, local_rope=local))


FAMILY = Family(
    hf=HfDecoder("olmo3", "Olmo3ForCausalLM", Config, spec, olmo2.NAMES), gguf_of="olmo2"
)
