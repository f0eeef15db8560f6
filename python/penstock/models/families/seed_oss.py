"""Seed-OSS: Llama with biases on q, k and v, and a separate config key for the bias of the
attention output."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' SeedOssConfig."""

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 524_288
    attention_bias: bool = True
    attention_out_bias: bool | None = False


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    plain = decoder_spec(config, where, uniform_layers(config, where))
    if config.attention_out_bias is None:
        return plain
    return replace(plain, output_bias=config.attention_out_bias)


GGUF = replace(GGUF_NAMES, mlp_norm="post_attention_norm")
FAMILY = Family(
    hf=HfDecoder("seed_oss", "SeedOssForCausalLM", Config, spec),
    gguf=GgufDecoder("seed_oss", names=GGUF),
)
