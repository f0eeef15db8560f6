"""Phi-1, Phi-1.5 and Phi-2: LayerNorms, attention and a feed-forward without a gate side by side,
biases everywhere, and a rotary embedding of the first components of each head. The GGUF
architecture is `phi2`."""

from __future__ import annotations

from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import partial_rotary_decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import HF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' PhiConfig."""

    hidden_act: str = "gelu_new"
    layer_norm_eps: float = 1e-5
    partial_rotary_factor: float | None = 0.5
    qk_layernorm: bool = False


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    if config.qk_layernorm:
        raise ModelError(f"{where}: qk_layernorm true is not supported")
    plain = partial_rotary_decoder_spec(config, where, uniform_layers(config, where))
    return replace(
        plain,
        norm_eps=config.layer_norm_eps,
        norm_kind="layer",
        norm_bias=True,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
        parallel=True,
        gated=False,
    )


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    plain = gguf_decoder_spec(file)
    return replace(plain, parallel=True, gated=False, activation="gelu_tanh")


NAMES = replace(
    HF_NAMES,
    final_norm="model.final_layernorm",
    output="self_attn.dense",
    up="mlp.fc1",
    down="mlp.fc2",
)
FAMILY = Family(
    hf=HfDecoder("phi", "PhiForCausalLM", Config, spec, NAMES),
    gguf=GgufDecoder("phi2", gguf_spec),
)
