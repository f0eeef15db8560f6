"""ERNIE 4.5 (dense): Llama with a rotary embedding of neighbouring components (2i, 2i + 1), and one
config key for all biases."""

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
    """The keys of config.json, with the defaults of transformers' Ernie4_5Config."""

    num_key_value_heads: int | None = 2
    head_dim: int | None = 128
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    rope_theta: float | None = 5e5
    tie_word_embeddings: bool | None = True
    use_bias: bool | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. `use_bias` in the config adds biases to
    every linear layer."""
    plain = decoder_spec(config, where, uniform_layers(config, where))
    has_bias = bool(config.use_bias)
    return replace(
        plain,
        qkv_bias=plain.qkv_bias or has_bias,
        output_bias=plain.output_bias or has_bias,
        mlp_bias=plain.mlp_bias or has_bias,
        interleaved_rope=True,
    )


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    return replace(gguf_decoder_spec(file), interleaved_rope=True)


FAMILY = Family(
    hf=HfDecoder("ernie4_5", "Ernie4_5ForCausalLM", Config, spec),
    gguf=GgufDecoder("ernie4_5", gguf_spec),
)
