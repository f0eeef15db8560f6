"""Arcee: Llama with a feed-forward without a gate, whose activation is the squared ReLU."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' ArceeConfig."""

    hidden_act: str = "relu2"
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    return replace(decoder_spec(config, where, uniform_layers(config, where)), gated=False)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    return replace(gguf_decoder_spec(file), gated=False, activation="relu_squared")


FAMILY = Family(
    hf=HfDecoder("arcee", "ArceeForCausalLM", Config, spec),
    gguf=GgufDecoder("arcee", gguf_spec, permuted_qk=True),
)
