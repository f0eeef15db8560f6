"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and an optional sliding window in the later
layers."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import typed_layers
from penstock.models.decoder.spec import DecoderSpec, LayerSpec


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' Qwen2Config."""

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32_768
    sliding_window: int | None = 4096
    use_sliding_window: bool | None = None
    max_window_layers: int | None = 28


def qwen_layers(config: Config, where: str) -> tuple[LayerSpec, ...]:
    """Return the spec of each layer. If `use_sliding_window` is true, the layers that `layer_types`
    names have the window, or, without `layer_types`, the layers from index `max_window_layers`
    on."""
    window = config.sliding_window if config.use_sliding_window else None
    first = config.max_window_layers or 0
    return typed_layers(config, where, window, lambda layer: layer >= first)


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    layers = qwen_layers(config, where)
    return replace(decoder_spec(config, where, layers), qkv_bias=True, output_bias=False)


FAMILY = Family(
    hf=HfDecoder("qwen2", "Qwen2ForCausalLM", Config, spec),
    gguf=GgufDecoder("qwen2"),
)
