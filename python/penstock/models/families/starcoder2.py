"""Starcoder2: LayerNorms, biases everywhere, and a feed-forward without a gate."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import HF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' Starcoder2Config."""

    num_key_value_heads: int | None = 2
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 4096
    norm_epsilon: float = 1e-5
    sliding_window: int | None = None
    use_bias: bool = True
    tie_word_embeddings: bool | None = True


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    layers = uniform_layers(config, where, config.sliding_window)
    biased = config.use_bias
    return replace(
        decoder_spec(config, where, layers),
        norm_eps=config.norm_epsilon,
        norm_kind="layer",
        norm_bias=True,
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
        gated=False,
    )


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    return replace(gguf_decoder_spec(file), gated=False, activation="gelu_tanh")


NAMES = replace(HF_NAMES, up="mlp.c_fc", down="mlp.c_proj")
FAMILY = Family(
    hf=HfDecoder("starcoder2", "Starcoder2ForCausalLM", Config, spec, NAMES),
    gguf=GgufDecoder("starcoder2", gguf_spec),
)
