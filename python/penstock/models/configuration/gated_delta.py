"""Reads the gated delta nets of Qwen3-Next and Qwen3.5 from config.json or GGUF metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_keys import Keys
from penstock.models.configuration.gguf_rope import gguf_axis_keys
from penstock.models.configuration.hf_decoder import partial_rotary_decoder_spec
from penstock.models.configuration.hf_experts import QwenExpertsConfig, qwen_mixtures
from penstock.models.configuration.hybrid_layers import (
    check_count,
    every_nth,
    gguf_per_layer,
    layer_kinds,
)
from penstock.models.decoder.mixers.gated_delta import DeltaLayout, GatedDeltaSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.quant.gguf.gguf_file import GgufFile

_KINDS: Final = {"linear_attention": "delta", "full_attention": "attention"}
_INTERVAL: Final = 4
_GATE_TYPES: Final = (None, "silu", "swish")
GGUF_DELTA_KEYS: Final = frozenset({"full_attention_interval", "nextn_predict_layers"})
"""The keys that `gguf_delta_decoder` reads itself, without the "<architecture>." prefix."""


class DeltaConfig(QwenExpertsConfig):
    """The keys of config.json, with the defaults of transformers' Qwen3_5TextConfig. Only
    `with_mixtures` reads those of experts.
    `full_attention_interval`: every layer whose number (from 1) is a multiple of it has attention,
    if there are no `layer_types`."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    max_position_embeddings: int = 32_768
    partial_rotary_factor: float | None = 0.25
    mrope_interleaved: bool = True
    attn_output_gate: bool = True
    output_gate_type: str | None = None
    full_attention_interval: int = _INTERVAL
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32


def delta_decoder(config: DeltaConfig, where: str, layout: DeltaLayout) -> DecoderSpec:
    """Return the spec of a dense hybrid of gated delta nets and attention with a gate. `layout`:
    that of the delta nets in the file. Raises ModelError that starts with `where` and names the
    key."""
    if not config.attn_output_gate:
        raise ModelError(f"{where}: attn_output_gate false is not supported")
    if config.output_gate_type not in _GATE_TYPES:
        raise ModelError(f"{where}: output_gate_type {config.output_gate_type!r} is not supported")
    net = GatedDeltaSpec(
        groups=config.linear_num_key_heads,
        heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        taps=config.linear_conv_kernel_dim,
        norm_eps=config.rms_norm_eps,
        layout=layout,
    )
    layers = tuple(
        LayerSpec(mixer=net) if kind == "delta" else LayerSpec() for kind in _kinds(config, where)
    )
    return replace(
        partial_rotary_decoder_spec(config, where, layers),
        qk_norm=True,
        norm_offset=1.0,
        output_gate=True,
    )


def with_mixtures(plain: DecoderSpec, config: DeltaConfig, where: str) -> DecoderSpec:
    """Return `plain` with the mixtures of experts that `config` describes. Raises ModelError that
    starts with `where` and names the key."""
    mixtures = qwen_mixtures(msgspec.structs.replace(config, layer_types=None), where)
    layers = zip(plain.layers, mixtures, strict=True)
    return replace(
        plain, layers=tuple(replace(layer, experts=experts) for layer, experts in layers)
    )


def _kinds(config: DeltaConfig, where: str) -> list[str]:
    layers = config.num_hidden_layers
    check_count(layers, where, "num_hidden_layers")
    if config.layer_types is not None:
        return layer_kinds(config.layer_types, layers, _KINDS, where, "layer_types")
    attends = every_nth(layers, config.full_attention_interval, where, "full_attention_interval")
    return ["attention" if own else "delta" for own in attends]


def gguf_delta_decoder(file: GgufFile, layout: DeltaLayout) -> DecoderSpec:
    """Return the spec of a hybrid of gated delta nets in a GGUF file. The converter has already
    added 1 to the norm weights. Raises ModelError naming the key."""
    architecture = file.text("general.architecture")
    plain = gguf_decoder_spec(file, family_keys=GGUF_DELTA_KEYS)
    heads = file.integer(f"{architecture}.ssm.time_step_rank")
    inner = file.integer(f"{architecture}.ssm.inner_size")
    if heads < 1 or inner % heads:
        raise ModelError(
            f"{file.path}: {architecture}.ssm.inner_size {inner} is not a multiple of"
            f" {architecture}.ssm.time_step_rank {heads}"
        )
    net = GatedDeltaSpec(
        groups=file.integer(f"{architecture}.ssm.group_count"),
        heads=heads,
        key_dim=file.integer(f"{architecture}.ssm.state_size"),
        value_dim=inner // heads,
        taps=file.integer(f"{architecture}.ssm.conv_kernel"),
        norm_eps=plain.norm_eps,
        layout=layout,
    )
    attends = _gguf_attention(file, architecture, len(plain.layers))
    layers = (
        replace(layer, mixer=None if own else net)
        for layer, own in zip(plain.layers, attends, strict=True)
    )
    return replace(plain, layers=tuple(layers), qk_norm=True, qkv_bias=False, output_gate=True)


def _gguf_attention(file: GgufFile, architecture: str, layers: int) -> list[bool]:
    """Return for each layer whether it has attention."""
    recurrent = gguf_per_layer(file, f"{architecture}.attention.recurrent_layers", layers)
    if recurrent is not None:
        return [not own for own in recurrent]
    key = f"{architecture}.full_attention_interval"
    return every_nth(layers, file.integer(key, _INTERVAL), str(file.path), key)


def gguf_delta_keys(spec: DecoderSpec) -> Keys:
    """Return the keys that `gguf_delta_decoder` reads."""
    nets = [layer.mixer for layer in spec.layers]
    net = next((own for own in nets if isinstance(own, GatedDeltaSpec)), None)
    if net is None:
        return gguf_axis_keys(spec.rope)
    first = nets.index(None) if None in nets else len(nets)
    return {
        "ssm.conv_kernel": net.taps,
        "ssm.state_size": net.key_dim,
        "ssm.group_count": net.groups,
        "ssm.time_step_rank": net.heads,
        "ssm.inner_size": net.value_rows,
        "full_attention_interval": first + 1,
        **gguf_axis_keys(spec.rope),
    }
