"""Llama 4, its text model: attention in chunks of positions in layers with rotary embedding; layers
without it in between, whose queries grow with the position; and a mixture of experts that scales
the input of one expert, beside a shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from penstock.base.errors import ModelError
from penstock.kernels.routing import Routing
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_experts import EXPERT_KEYS, gguf_mixtures
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_experts import HfExpertsConfig, expert_counts
from penstock.models.configuration.hf_layers import num_layers
from penstock.models.decoder.block_specs import LayerAttention, QueryScaling
from penstock.models.decoder.experts_spec import ExpertsSpec, check_choice
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, HF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile

CHUNK: Final = 8192
NO_ROPE_INTERVAL: Final = 4
SCALING: Final = QueryScaling(strength=0.1, period=8192, offset=1)
EXPERTS_OF_MAVERICK: Final = 128
"""The number of experts of the 128E model, the only one without norms of heads."""
_KINDS: Final = {"chunked_attention": True, "full_attention": False}


class Config(HfExpertsConfig):
    """The keys of config.json, with the defaults of transformers' Llama4TextConfig.
    `intermediate_size`: the width of an expert; `intermediate_size_mlp`: that of dense layers."""

    hidden_size: int = 5120
    intermediate_size: int = 8192
    intermediate_size_mlp: int = 16_384
    num_hidden_layers: int = 48
    num_attention_heads: int = 40
    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    vocab_size: int = 202_048
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    rope_theta: float | None = 5e5
    num_experts_per_tok: int | None = 1
    num_local_experts: int | None = 16
    moe_layers: list[int] | None = None
    interleave_moe_layer_step: int = 1
    use_qk_norm: bool = True
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: int = NO_ROPE_INTERVAL
    attention_chunk_size: int | None = CHUNK
    attn_temperature_tuning: bool = True
    floor_scale: int = SCALING.period
    attn_scale: float = SCALING.strength


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    plain_keys = msgspec.structs.replace(
        config, layer_types=None, intermediate_size=config.intermediate_size_mlp
    )
    count = num_layers(plain_keys, where)
    rotary = _rotary_layers(config, where, count)
    chunked = _chunked_layers(config, where, rotary)
    mixture, sparse = _mixture(config, where), _sparse_layers(config, where, count)
    layers = tuple(
        LayerSpec(
            rotary=rotary[index],
            experts=mixture if index in sparse else None,
            attention=_attention(config, where, rotary[index], chunked[index]),
        )
        for index in range(count)
    )
    plain = decoder_spec(plain_keys, where, layers)
    return replace(plain, interleaved_rope=True, mlp_bias=False)


def _attention(config: Config, where: str, rotates: bool, is_chunked: bool) -> LayerAttention:
    scaling = None
    if config.attn_temperature_tuning and not rotates:
        if config.floor_scale < 1:
            raise ModelError(f"{where}: floor_scale {config.floor_scale} is not positive")
        scaling = QueryScaling(config.attn_scale, config.floor_scale, offset=1)
    return LayerAttention(
        chunk=config.attention_chunk_size or 0 if is_chunked else 0,
        unit_heads=config.use_qk_norm and rotates,
        query_scaling=scaling,
    )


def _rotary_layers(config: Config, where: str, count: int) -> list[bool]:
    interval = config.no_rope_layer_interval
    if config.no_rope_layers:
        if len(config.no_rope_layers) != count:
            raise ModelError(
                f"{where}: no_rope_layers has {len(config.no_rope_layers)} entries for {count}"
                " layers"
            )
        return [bool(rotates) for rotates in config.no_rope_layers]
    if interval < 1:
        raise ModelError(f"{where}: no_rope_layer_interval {interval} is not positive")
    return [(index + 1) % interval != 0 for index in range(count)]


def _chunked_layers(config: Config, where: str, rotary: list[bool]) -> list[bool]:
    if config.layer_types is None:
        return rotary
    unknown = sorted(set(config.layer_types) - _KINDS.keys())
    if unknown or len(config.layer_types) != len(rotary):
        raise ModelError(
            f"{where}: layer_types must have {len(rotary)} entries of {sorted(_KINDS)}, not"
            f" {len(config.layer_types)} with {unknown}"
        )
    return [_KINDS[kind] for kind in config.layer_types]


def _mixture(config: Config, where: str) -> ExpertsSpec:
    count, per_token = expert_counts(config, where)
    check_choice(where, per_token)
    width = config.intermediate_size
    return ExpertsSpec(
        count, Routing(per_token, "sigmoid"), width, shares_scale="input", shared_size=width
    )


def _sparse_layers(config: Config, where: str, count: int) -> set[int]:
    step = config.interleave_moe_layer_step
    if config.moe_layers is None:
        if step < 1:
            raise ModelError(f"{where}: interleave_moe_layer_step {step} is not positive")
        return set(range(step - 1, count, step))
    beyond = [layer for layer in config.moe_layers if not 0 <= layer < count]
    if beyond:
        raise ModelError(f"{where}: moe_layers: {beyond} are not in 0..{count - 1}")
    return set(config.moe_layers)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file, filling in what the metadata omits: chunks, layers
    without rotary embedding and the scale of their queries are the same in all models. A sliding
    window of 0 in the file means that the model has none of them."""
    plain = gguf_mixtures(file, gguf_decoder_spec(file, EXPERT_KEYS), "sigmoid", renormalize=False)
    is_plain = file.integer("llama4.attention.sliding_window", CHUNK) == 0
    normalizes = file.integer("llama4.expert_count") != EXPERTS_OF_MAVERICK

    def layer(index: int, own: LayerSpec) -> LayerSpec:
        rotates = is_plain or (index + 1) % NO_ROPE_INTERVAL != 0
        attention = LayerAttention(
            chunk=CHUNK if rotates and not is_plain else 0,
            unit_heads=rotates and normalizes,
            query_scaling=None if rotates else SCALING,
        )
        experts = None if own.experts is None else replace(own.experts, shares_scale="input")
        return replace(own, window=0, rotary=rotates, attention=attention, experts=experts)

    layers = tuple(layer(index, own) for index, own in enumerate(plain.layers))
    return replace(plain, layers=layers, interleaved_rope=True)


def tensor_name(name: str) -> str:
    """Return the name by which the language model knows a tensor of a folder."""
    return name.replace("feed_forward.experts.", "mlp.experts.")


NAMES = replace(
    HF_NAMES,
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    router="feed_forward.router",
    shared_gate="feed_forward.shared_expert.gate_proj",
    shared_up="feed_forward.shared_expert.up_proj",
    shared_down="feed_forward.shared_expert.down_proj",
)
FAMILY = Family(
    hf=HfDecoder(
        "llama4",
        "Llama4ForCausalLM",
        Config,
        spec,
        NAMES,
        model_type="llama4_text",
        headless="Llama4TextModel",
        is_reranker=False,
        tensor_name=tensor_name,
    ),
    gguf=GgufDecoder("llama4", gguf_spec, GGUF_NAMES, is_written=False),
)
