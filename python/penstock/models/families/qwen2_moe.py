"""Qwen2-MoE and Qwen1.5-MoE: Qwen2 with mixtures of experts and a gated shared expert."""

from __future__ import annotations

from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_experts import EXPERT_KEYS, gguf_mixtures
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_experts import QwenExpertsConfig, qwen_mixtures
from penstock.models.configuration.hf_layers import typed_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import HF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile


class Config(QwenExpertsConfig):
    """The keys of config.json, with the defaults of transformers' Qwen2MoeConfig."""

    num_key_value_heads: int | None = 16
    max_position_embeddings: int = 32_768
    sliding_window: int | None = 4096
    use_sliding_window: bool | None = None
    max_window_layers: int | None = 28
    num_experts: int | None = 60
    num_experts_per_tok: int | None = 4
    moe_intermediate_size: int | None = 1408
    shared_expert_intermediate_size: int | None = 5632
    qkv_bias: bool = True


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. With a sliding window and no `layer_types`,
    the layers with an even index below `max_window_layers` have it."""
    if not config.shared_expert_intermediate_size:
        raise ModelError(f"{where}: shared_expert_intermediate_size is missing")
    window = config.sliding_window if config.use_sliding_window else None
    last = config.max_window_layers or 0
    layers = tuple(
        replace(layer, experts=experts)
        for layer, experts in zip(
            typed_layers(config, where, window, lambda index: index < last and index % 2 == 0),
            qwen_mixtures(config, where),
            strict=True,
        )
    )
    plain = decoder_spec(config, where, layers)
    return replace(plain, qkv_bias=config.qkv_bias, output_bias=False)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. Unless it says so, shares are softmax probabilities
    over all experts, which are not divided by their sum."""
    return gguf_mixtures(file, gguf_decoder_spec(file, EXPERT_KEYS), "softmax", renormalize=False)


NAMES = replace(
    HF_NAMES,
    shared_gate="mlp.shared_expert.gate_proj",
    shared_up="mlp.shared_expert.up_proj",
    shared_down="mlp.shared_expert.down_proj",
    shared_router="mlp.shared_expert_gate",
)
FAMILY = Family(
    hf=HfDecoder("qwen2_moe", "Qwen2MoeForCausalLM", Config, spec, NAMES),
    gguf=GgufDecoder("qwen2moe", gguf_spec),
)
