"""Hunyuan (dense): Llama with norms of each query and key head after the rotation, and a base of
the rotary embedding that a factor alpha stretches (NTK-aware scaling)."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.configuration.ntk_alpha import with_stretched_base
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import HF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' HunYuanDenseV1Config."""

    rms_norm_eps: float = 1e-5


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. The feed-forward has no biases."""
    config = msgspec.structs.replace(with_stretched_base(config, where), mlp_bias=False)
    plain = decoder_spec(config, where, uniform_layers(config, where))
    return with_norms(plain)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file, whose base is already stretched."""
    return with_norms(gguf_decoder_spec(file))


def with_norms(plain: DecoderSpec) -> DecoderSpec:
    """Return `plain` with Hunyuan's norms of each query and key head after the rotation."""
    return replace(plain, qk_norm=True, qk_norm_form="rotated")


NAMES = replace(HF_NAMES, q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")
FAMILY = Family(
    hf=HfDecoder(
        "hunyuan_dense",
        "HunYuanDenseV1ForCausalLM",
        Config,
        spec,
        NAMES,
        model_type="hunyuan_v1_dense",
    ),
    gguf=GgufDecoder("hunyuan-dense", gguf_spec),
)
