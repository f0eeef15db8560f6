"""Phi-3 and Phi-4: Mistral with fused projections, LongRoPE and partial rotary embedding."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_keys import Keys
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import partial_rotary_decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import GGUF_FUSED_GATE_UP_NAMES, HF_NAMES


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' Phi3Config."""

    max_position_embeddings: int = 4096
    original_max_position_embeddings: int | None = 4096
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    layers = uniform_layers(config, where, config.sliding_window)
    plain = partial_rotary_decoder_spec(config, where, layers)
    return replace(plain, qkv_bias=False, output_bias=False)


def gguf_keys(spec: DecoderSpec) -> Keys:
    """Return the key of the sliding window, which llama.cpp needs also if there is none."""
    return {"attention.sliding_window": spec.layers[0].window}


NAMES = replace(
    HF_NAMES,
    q="self_attn.qkv_proj",
    k="self_attn.qkv_proj",
    v="self_attn.qkv_proj",
    gate="mlp.gate_up_proj",
    up="mlp.gate_up_proj",
)
FAMILY = Family(
    hf=HfDecoder("phi3", "Phi3ForCausalLM", Config, spec, NAMES),
    gguf=GgufDecoder("phi3", names=GGUF_FUSED_GATE_UP_NAMES, keys=gguf_keys),
)
