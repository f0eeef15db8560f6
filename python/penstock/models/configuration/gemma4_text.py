"""Reads the text model of Gemma 4: heads of another size in layers with full attention, values that
are keys, layers that read an earlier layer's cache, and per-layer inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.kernels.routing import Routing
from penstock.models.configuration.gemma_text import GemmaConfig, llama_keys, share_caches
from penstock.models.configuration.gguf_decoder import (
    gguf_decoder_spec,
    layer_integers,
    require_equal,
)
from penstock.models.configuration.gguf_keys import Keys, windows_of_each
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import all_but_last_of, typed_layers
from penstock.models.configuration.hf_rope import FULL, SLIDING, RopeParameters
from penstock.models.decoder.block_specs import LayerAttention, PerLayerInputsSpec
from penstock.models.decoder.experts_spec import ExpertsSpec, check_choice
from penstock.models.decoder.rope_spec import LinearScaling, RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.quant.gguf.gguf_file import GgufFile

PERIOD: Final = 6
MEDIA_TOKENS: Final = (258_880, 258_881, 258_884)
"""The tokens of image, audio and video rows, if the config names no others."""
_ROPES: Final[Mapping[str, RopeParameters]] = {
    FULL: RopeParameters(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25),
    SLIDING: RopeParameters(rope_theta=1e4),
}


class LayerOverrides(msgspec.Struct, forbid_unknown_fields=True):
    """The keys that `per_layer_config` may override in a layer."""

    head_dim: int | None = None
    num_key_value_heads: int | None = None


class Gemma4TextConfig(GemmaConfig):
    """The keys of config.json, with the defaults of transformers' Gemma4TextConfig.
    `per_layer_config`: index of a layer -> the keys that differ there; it replaces the two keys of
    layers with full attention, `global_head_dim` and `num_global_key_value_heads`."""

    hidden_size: int = 2304
    num_hidden_layers: int = 30
    num_attention_heads: int = 8
    intermediate_size: int = 9216
    vocab_size: int = 262_144
    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    max_position_embeddings: int = 131_072
    sliding_window: int = 512
    global_head_dim: int | None = 512
    num_global_key_value_heads: int | None = None
    per_layer_config: dict[str, LayerOverrides] | None = None
    use_bidirectional_attention: str | None = None
    vocab_size_per_layer_input: int = 262_144
    hidden_size_per_layer_input: int | None = 256
    attention_k_eq_v: bool = False
    num_kv_shared_layers: int = 0
    use_double_wide_mlp: bool = False
    enable_moe_block: bool = False
    num_experts: int | None = None
    top_k_experts: int | None = None
    moe_intermediate_size: int | None = None
    pad_token_id: int | None = 0
    media_token_ids: tuple[int, ...] = ()


class Gemma4UnifiedTextConfig(Gemma4TextConfig):
    """The keys of config.json, with the defaults of transformers' Gemma4UnifiedTextConfig."""

    max_position_embeddings: int = 262_144
    sliding_window: int = 1024
    use_bidirectional_attention: str | None = "vision"
    hidden_size_per_layer_input: int | None = None


def text_spec(config: Gemma4TextConfig, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. Raises ModelError that starts with `where`
    and names the key at fault."""
    bidirectional = config.use_bidirectional_attention == "all"
    if config.use_bidirectional_attention not in (None, "all", "vision"):
        raise ModelError(
            f"{where}: use_bidirectional_attention {config.use_bidirectional_attention!r} is not"
            " supported, known are all and vision"
        )
    # The config counts both sides, LayerSpec one side plus the token.
    window = config.sliding_window // 2 + 1 if bidirectional else config.sliding_window
    if window < 1:
        raise ModelError(f"{where}: sliding_window {config.sliding_window} is not positive")
    layers = typed_layers(config, where, window, all_but_last_of(PERIOD, where))
    layers = (*layers[:-1], replace(layers[-1], window=0))
    layers = tuple(_layer(config, index, own, where) for index, own in enumerate(layers))
    layers = share_caches(layers, config.num_kv_shared_layers, f"{where}: num_kv_shared_layers")
    if config.use_double_wide_mlp:
        layers = tuple(_widened(layer, config.intermediate_size) for layer in layers)
    plain_keys = msgspec.structs.replace(config, rope_parameters=None, rope_scaling=None)
    plain = decoder_spec(llama_keys(plain_keys, bidirectional), where, layers)
    full_dims = {layer.attention.head_dim or plain.head_dim for layer in layers if not layer.window}
    if len(full_dims) > 1:
        raise ModelError(
            f"{where}: per_layer_config: layers with full attention differ in head_dim"
        )
    return replace(
        plain,
        rope=_rope(config, FULL, full_dims.pop(), where),
        local_rope=_rope(config, SLIDING, plain.head_dim, where),
        qk_norm=True,
        value_norm=True,
        attention_scale=1.0,
        embedding_scale=max(config.hidden_size, 0) ** 0.5,
        norms="sandwich",
        layer_scalars=True,
        logit_cap=config.final_logit_softcapping or 0.0,
        bidirectional=bidirectional or plain.bidirectional,
        media_visibility="windowed",
        per_layer_inputs=_per_layer_inputs(config),
    )


def _layer(config: Gemma4TextConfig, index: int, plain: LayerSpec, where: str) -> LayerSpec:
    if config.per_layer_config is not None:
        own = config.per_layer_config.get(str(index), LayerOverrides())
        if plain.window and own.head_dim not in (None, config.head_dim):
            raise ModelError(
                f"{where}: per_layer_config: head_dim {own.head_dim} in layer {index}, which has a"
                " sliding window, is not supported"
            )
    elif plain.window:
        own = LayerOverrides()
    else:
        kv_heads = config.num_global_key_value_heads if config.attention_k_eq_v else None
        own = LayerOverrides(config.global_head_dim, kv_heads)
    keys_are_values = config.attention_k_eq_v and not plain.window
    attention = LayerAttention(own.num_key_value_heads, own.head_dim, keys_are_values)
    return replace(plain, attention=attention, experts=_experts(config, where))


def _experts(config: Gemma4TextConfig, where: str) -> ExpertsSpec | None:
    """Return the experts beside the feed-forward of each layer, or None."""
    if not config.enable_moe_block:
        return None
    count, per_token, width = (
        config.num_experts,
        config.top_k_experts,
        config.moe_intermediate_size,
    )
    if count is None or per_token is None or width is None:
        keys = "num_experts, top_k_experts and moe_intermediate_size"
        raise ModelError(f"{where}: enable_moe_block true needs {keys}")
    check_choice(where, per_token)
    return _mixture(ExpertsSpec(count, Routing(per_token, renormalize=True), width))


def _mixture(experts: ExpertsSpec) -> ExpertsSpec:
    return replace(experts, activation="gelu_tanh", expert_scale=True, beside_dense=True)


def _widened(layer: LayerSpec, width: int) -> LayerSpec:
    """Return a layer with twice the feed-forward width if it reads another layer's cache."""
    if layer.attention.cache_of is None:
        return layer
    return replace(layer, intermediate_size=2 * width)


def _rope(config: Gemma4TextConfig, kind: str, head_dim: int, where: str) -> RopeSpec:
    """Return the RoPE of the layers of one kind. "proportional": the frequencies are those of a
    whole head, and only the first part of the pairs turns."""
    try:
        given = msgspec.convert(config.rope_parameters or {}, dict[str, dict[str, Any] | None])
        rope = msgspec.convert(
            given.get(kind) or _ROPES[kind], RopeParameters, from_attributes=True
        )
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: rope_parameters: {error}") from None
    theta = rope.rope_theta or _ROPES[kind].rope_theta
    assert theta is not None, "the default has a base"
    if rope.rope_type in (None, "default"):
        return RopeSpec(theta, head_dim)
    if rope.rope_type != "proportional":
        raise ModelError(
            f"{where}: rope_parameters: rope_type {rope.rope_type!r} is not supported, only"
            " default and proportional"
        )
    share = 1.0 if rope.partial_rotary_factor is None else rope.partial_rotary_factor
    factor = 1.0 if rope.factor is None else rope.factor
    if not (0 <= share <= 1 and factor > 0):
        raise ModelError(
            f"{where}: rope_parameters: partial_rotary_factor {share} or factor {factor} is out of"
            " range"
        )
    scaling = None if factor == 1.0 else LinearScaling(factor)
    return RopeSpec(theta, head_dim, scaling, turning_pairs=int(share * head_dim // 2))


def _per_layer_inputs(config: Gemma4TextConfig) -> PerLayerInputsSpec | None:
    if not config.hidden_size_per_layer_input:
        return None
    return PerLayerInputsSpec(
        width=config.hidden_size_per_layer_input,
        vocab_size=config.vocab_size_per_layer_input,
        stand_in=config.pad_token_id or 0,
        media_tokens=config.media_token_ids,
    )


GGUF_KEYS: Final = frozenset(
    {
        "final_logit_softcapping",
        "attention.shared_kv_layers",
        "attention.head_count_kv",
        "attention.key_length_swa",
        "attention.value_length_swa",
        "rope.dimension_count_swa",
        "feed_forward_length",
    }
)
"""The keys that `gguf_text_spec` reads, without the "gemma4." prefix."""


def gguf_text_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. `rope_freqs.weight` tells which pairs turn in the
    layers with full attention. Raises ModelError naming the key at fault."""
    plain = gguf_decoder_spec(file, GGUF_KEYS)
    local_dim = file.integer("gemma4.attention.key_length_swa", plain.head_dim)
    require_equal(file, "gemma4.attention.value_length_swa", local_dim)
    require_equal(file, "gemma4.rope.dimension_count_swa", local_dim)
    count = len(plain.layers)
    kv_heads = layer_integers(file, "gemma4.attention.head_count_kv", count)
    widths = layer_integers(file, "gemma4.feed_forward_length", count)
    layers = []
    for index, layer in enumerate(plain.layers):
        attention = LayerAttention(
            num_kv_heads=kv_heads[index],
            head_dim=local_dim if layer.window else None,
            keys_are_values=f"blk.{index}.attn_v.weight" not in file.tensors,
        )
        experts = None if layer.experts is None else _mixture(layer.experts)
        layers.append(
            replace(layer, attention=attention, experts=experts, intermediate_size=widths[index])
        )
    key = "gemma4.attention.shared_kv_layers"
    local_theta = file.real("gemma4.rope.freq_base_swa", 10_000.0)
    return replace(
        plain,
        layers=share_caches(layers, file.integer(key, 0), f"{file.path}: {key}"),
        local_rope=RopeSpec(local_theta, local_dim),
        value_norm=True,
        attention_scale=1.0,
        embedding_scale=plain.hidden_size**0.5,
        norms="sandwich",
        activation="gelu_tanh",
        layer_scalars="blk.0.layer_output_scale.weight" in file.tensors,
        logit_cap=file.real("gemma4.final_logit_softcapping", 0.0),
        media_visibility="windowed",
        per_layer_inputs=gguf_per_layer_inputs(file, "gemma4", MEDIA_TOKENS),
    )


def gguf_per_layer_inputs(
    file: GgufFile, architecture: str, media_tokens: tuple[int, ...]
) -> PerLayerInputsSpec | None:
    """Return the per-layer inputs of a GGUF file, or None if it has none."""
    width = file.integer(f"{architecture}.embedding_length_per_layer_input", 0)
    table = file.tensors.get("per_layer_token_embd.weight")
    if not width:
        return None
    if table is None:
        raise ModelError(f"{file.path}: tensor per_layer_token_embd.weight is missing")
    known = tuple(token for token in media_tokens if token < table.shape[0])
    return PerLayerInputsSpec(width, table.shape[0], media_tokens=known)


def gguf_text_keys(spec: DecoderSpec) -> Keys:
    """Return the keys that `gguf_text_spec` reads."""
    local = spec.head_dim
    dims = {spec.heads(layer)[2] for layer in spec.layers if not layer.window}
    full = max(dims, default=local)
    keys: dict[str, Any] = {
        "attention.key_length": full,
        "attention.value_length": full,
        "attention.key_length_swa": local,
        "attention.value_length_swa": local,
        **windows_of_each(spec),
        "attention.shared_kv_layers": sum(
            layer.attention.cache_of is not None for layer in spec.layers
        ),
        "rope.dimension_count_swa": local,
    }
    if spec.logit_cap:
        keys["final_logit_softcapping"] = float(spec.logit_cap)
    inputs = spec.per_layer_inputs
    keys["embedding_length_per_layer_input"] = 0 if inputs is None else inputs.width
    return keys
