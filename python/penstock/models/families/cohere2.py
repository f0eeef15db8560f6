"""Cohere 2 (Command R7B, Command A): Cohere with a sliding window in three of four layers; the
others have no rotary embedding."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_keys import Keys, windows_of_each
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import all_but_last_of, typed_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.families import cohere
from penstock.models.families.cohere import with_gguf_scale, with_scaled_logits
from penstock.models.families.exaone4 import without_global_rotation
from penstock.quant.gguf.gguf_file import GgufFile

GGUF_WINDOW_PERIOD = 4


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' Cohere2Config."""

    max_position_embeddings: int = 8192
    layer_norm_eps: float = 1e-5
    logit_scale: float | None = 0.0625
    tie_word_embeddings: bool | None = True
    sliding_window: int | None = 4096
    sliding_window_pattern: int | None = 4


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    is_sliding = all_but_last_of(config.sliding_window_pattern, where)
    layers = typed_layers(config, where, config.sliding_window, is_sliding)
    plain = decoder_spec(config, where, without_global_rotation(layers))
    plain = replace(plain, norm_eps=config.layer_norm_eps, norm_kind="layer")
    return with_scaled_logits(plain, config.logit_scale or 1.0, where)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    keys = frozenset({"logit_scale"})
    plain = gguf_decoder_spec(file, family_keys=keys, window_period=GGUF_WINDOW_PERIOD)
    plain = replace(plain, layers=without_global_rotation(plain.layers))
    return with_gguf_scale(file, plain)


def gguf_keys(spec: DecoderSpec) -> Keys:
    """Return the keys that `gguf_spec` reads."""
    return {**cohere.gguf_keys(spec), **windows_of_each(spec)}


FAMILY = Family(
    hf=HfDecoder("cohere2", "Cohere2ForCausalLM", Config, spec),
    gguf=GgufDecoder("cohere2", gguf_spec, keys=gguf_keys),
)
