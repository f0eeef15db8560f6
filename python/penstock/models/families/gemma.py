"""Gemma (1): Llama with scaled embeddings, GELU and norm weights that are stored minus 1."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' GemmaConfig. The first releases
    say `hidden_act` "gelu" and mean the approximation by tanh."""

    num_key_value_heads: int | None = 16
    head_dim: int | None = 256
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool | None = True
    use_bidirectional_attention: bool | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    if config.hidden_act == "gelu":
        config = msgspec.structs.replace(config, hidden_act="gelu_pytorch_tanh")
    plain = decoder_spec(config, where, uniform_layers(config, where))
    return replace(
        plain,
        embedding_scale=max(config.hidden_size, 0) ** 0.5,
        norm_offset=1.0,
        bidirectional=bool(config.use_bidirectional_attention) or plain.bidirectional,
    )


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. The converter has already added 1 to the norm
    weights."""
    plain = gguf_decoder_spec(file)
    return replace(plain, embedding_scale=plain.hidden_size**0.5, activation="gelu_tanh")


FAMILY = Family(
    hf=HfDecoder("gemma", "GemmaForCausalLM", Config, spec),
    gguf=GgufDecoder("gemma", gguf_spec),
)
