"""gpt-oss: a mixture of experts with biases and a clamped SwiGLU in every layer, attention sinks,
YaRN, and a sliding window in every second layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_experts import HfExpertsConfig, softmax_choice
from penstock.models.configuration.hf_layers import all_but_last_of, typed_layers
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.rope_spec import YarnScaling
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, HF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile

GGUF_WINDOW_PERIOD = 2


def _rope_parameters() -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }


class Config(HfExpertsConfig):
    """The keys of config.json, with the defaults of transformers' GptOssConfig."""

    num_key_value_heads: int | None = 8
    head_dim: int | None = 64
    num_local_experts: int | None = 128
    num_experts_per_tok: int | None = 4
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = True
    sliding_window: int | None = 128
    sliding_window_pattern: int | None = 2
    rope_theta: float | None = 150_000.0
    rope_parameters: dict[str, Any] | None = msgspec.field(default_factory=_rope_parameters)


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    is_sliding = all_but_last_of(config.sliding_window_pattern, where)
    layers = typed_layers(config, where, config.sliding_window, is_sliding)
    count, routing = softmax_choice(config, where, renormalize=True)
    layers = _with_experts(layers, ExpertsSpec(count, routing, config.intermediate_size))
    return replace(decoder_spec(config, where, layers), sinks=True)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. Raises ModelError for a file without experts."""
    plain = gguf_decoder_spec(file, window_period=GGUF_WINDOW_PERIOD)
    experts = plain.layers[0].experts
    if experts is None:
        raise ModelError(f"{file.path}: gpt-oss.expert_count is missing")
    rope = plain.rope
    if isinstance(rope.scaling, YarnScaling):
        # As in OpenAI's config.json. GGUF has no key for this; llama.cpp rounds the ramp's ends.
        rope = replace(rope, scaling=replace(rope.scaling, truncate=False))
    return replace(plain, rope=rope, layers=_with_experts(plain.layers, experts), sinks=True)


def _with_experts(layers: tuple[LayerSpec, ...], plain: ExpertsSpec) -> tuple[LayerSpec, ...]:
    """Return `layers` with gpt-oss's mixture of experts, whose biases and activation no config key
    describes."""
    routing = replace(plain.routing, renormalize=True)
    experts = replace(plain, routing=routing, biased=True, activation="swiglu_oai")
    return tuple(replace(layer, experts=experts) for layer in layers)


NAMES = replace(
    HF_NAMES,
    sinks="self_attn.sinks",
    router="mlp.router",
    # The names that GptOssCheckpoint gives to the experts.
    expert_gate="mlp.experts.gate_proj",
    expert_up="mlp.experts.up_proj",
    expert_down="mlp.experts.down_proj",
)
GGUF = replace(
    GGUF_NAMES, sinks="attn_sinks.weight", mlp_norm="post_attention_norm", attention_post_norm=""
)
FAMILY = Family(
    hf=HfDecoder("gpt_oss", "GptOssForCausalLM", Config, spec, NAMES),
    gguf=GgufDecoder("gpt-oss", gguf_spec, GGUF),
)
