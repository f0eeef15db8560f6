"""Reads the text model of Gemma 3n: parallel residual streams, per-layer inputs, shared caches, and
feed-forwards of which only the largest gates count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.gemma4_text import gguf_per_layer_inputs
from penstock.models.configuration.gemma_text import GemmaConfig, llama_keys, share_caches
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec, layer_integers
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import all_but_last_of, typed_layers
from penstock.models.configuration.hf_rope import local_rope_spec
from penstock.models.decoder.altup import STREAMS
from penstock.models.decoder.block_specs import AltUpSpec, PerLayerInputsSpec
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.quant.gguf.gguf_file import GgufFile

PERIOD: Final = 5
SPARSE_LAYERS: Final = 10
SPARSITY: Final = 0.95
LOCAL_THETA: Final = 1e4


class Gemma3nTextConfig(GemmaConfig):
    """The keys of config.json, with the defaults of transformers' Gemma3nTextConfig.
    `intermediate_size`, `activation_sparsity_pattern`: one number, or one per layer."""

    hidden_size: int = 2048
    num_hidden_layers: int = 35
    num_attention_heads: int = 8
    intermediate_size: int | list[int] = 16_384  # type: ignore[assignment]
    vocab_size: int = 262_400
    num_key_value_heads: int | None = 2
    head_dim: int | None = 256
    max_position_embeddings: int = 32_768
    rope_theta: float | None = 1e6
    rope_local_base_freq: float | None = LOCAL_THETA
    sliding_window: int = 512
    final_logit_softcapping: float | None = 30.0
    vocab_size_per_layer_input: int = 262_144
    hidden_size_per_layer_input: int = 256
    altup_active_idx: int = 0
    altup_correct_scale: bool = True
    altup_num_inputs: int = STREAMS
    num_kv_shared_layers: int = 15
    laurel_rank: int = 64
    activation_sparsity_pattern: float | list[float] | None = None


def text_spec(config: Gemma3nTextConfig, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. Raises ModelError that starts with `where`
    and names the key at fault."""
    check_altup(config.altup_num_inputs, config.altup_active_idx, f"{where}: altup_")
    if config.sliding_window < 1:
        raise ModelError(f"{where}: sliding_window {config.sliding_window} is not positive")
    layers = typed_layers(config, where, config.sliding_window, all_but_last_of(PERIOD, where))
    count = len(layers)
    given = config.intermediate_size
    widths = given if isinstance(given, list) else [given] * count
    _check_length(widths, count, f"{where}: intermediate_size")
    shares = _sparsities(config, count)
    _check_length(shares, count, f"{where}: activation_sparsity_pattern")
    layers = tuple(
        replace(layer, intermediate_size=width, gate_deviations=_deviations(share, where))
        for layer, width, share in zip(layers, widths, shares, strict=True)
    )
    plain_keys = msgspec.structs.replace(config, intermediate_size=max(widths))
    plain = decoder_spec(
        llama_keys(plain_keys, bidirectional=False),
        where,
        share_caches(layers, config.num_kv_shared_layers, f"{where}: num_kv_shared_layers"),
    )
    return replace(
        _gemma3n(plain),
        local_rope=local_rope_spec(config, where, config.rope_local_base_freq),
        qk_norm=True,
        logit_cap=config.final_logit_softcapping or 0.0,
        per_layer_inputs=PerLayerInputsSpec(
            config.hidden_size_per_layer_input, config.vocab_size_per_layer_input
        ),
        altup=AltUpSpec(config.laurel_rank, config.altup_correct_scale),
    )


def check_altup(streams: int, active: int, where: str) -> None:
    """Check that the model has four parallel streams, of which the first is computed. Raises
    ModelError that starts with `where`, the prefix of the keys."""
    for key, value, expected in (("num_inputs", streams, STREAMS), ("active_idx", active, 0)):
        if value != expected:
            raise ModelError(f"{where}{key} {value} is not supported, only {expected}")


def _check_length(entries: Sequence[float], count: int, where: str) -> None:
    if len(entries) != count:
        raise ModelError(f"{where} has {len(entries)} entries for {count} layers")


def _sparsities(config: Gemma3nTextConfig, count: int) -> list[float]:
    """Return the share of gates that do not count in each layer."""
    given = config.activation_sparsity_pattern
    if given is None:
        sparse = SPARSE_LAYERS if count > SPARSE_LAYERS else 0
        return [SPARSITY] * sparse + [0.0] * (count - sparse)
    return given if isinstance(given, list) else [given] * count


def _deviations(share: float, where: str) -> float | None:
    """Return the cutoff above which the given share of normally distributed gates is not."""
    if not 0 <= share < 1:
        raise ModelError(f"{where}: activation_sparsity_pattern {share} is not from 0 to below 1")
    return NormalDist().inv_cdf(share) if share else None


def _gemma3n(plain: DecoderSpec) -> DecoderSpec:
    """Return the spec with everything that folders and GGUF files leave out."""
    return replace(
        plain,
        value_norm=True,
        attention_scale=1.0,
        embedding_scale=max(plain.hidden_size, 0) ** 0.5,
        norms="sandwich",
        activation="gelu_tanh",
    )


GGUF_KEYS: Final = frozenset(
    {
        "final_logit_softcapping",
        "attention.shared_kv_layers",
        "activation_sparsity_scale",
        "feed_forward_length",
    }
)
"""The keys that `gguf_text_spec` reads, without the "gemma3n." prefix."""


def gguf_text_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. Raises ModelError naming the key at fault."""
    plain = gguf_decoder_spec(file, GGUF_KEYS, PERIOD)
    count = len(plain.layers)
    check_altup(
        file.integer("gemma3n.altup.num_inputs"),
        file.integer("gemma3n.altup.active_idx"),
        f"{file.path}: gemma3n.altup.",
    )
    widths = layer_integers(file, "gemma3n.feed_forward_length", count)
    cutoffs = file.numbers("gemma3n.activation_sparsity_scale").tolist()
    _check_length(cutoffs, count, f"{file.path}: gemma3n.activation_sparsity_scale")
    layers = tuple(
        _gguf_layer(layer, width, cutoff)
        for layer, width, cutoff in zip(plain.layers, widths, cutoffs, strict=True)
    )
    key = "gemma3n.attention.shared_kv_layers"
    laurel = file.tensors.get("blk.0.laurel_l.weight")
    if laurel is None:
        raise ModelError(f"{file.path}: tensor blk.0.laurel_l.weight is missing")
    local_theta = file.real("gemma3n.rope.freq_base_swa", LOCAL_THETA)
    return replace(
        _gemma3n(plain),
        layers=share_caches(layers, file.integer(key, 0), f"{file.path}: {key}"),
        local_rope=RopeSpec(local_theta, plain.rope.rotary_dim),
        logit_cap=file.real("gemma3n.final_logit_softcapping", 30.0),
        per_layer_inputs=gguf_per_layer_inputs(file, "gemma3n", ()),
        altup=AltUpSpec(laurel.shape[0]),
    )


def _gguf_layer(layer: LayerSpec, width: int, cutoff: float) -> LayerSpec:
    """Return the layer with its width. A cutoff of minus infinity means that all gates count."""
    deviations = None if cutoff == -math.inf else float(cutoff)
    return replace(layer, intermediate_size=width, gate_deviations=deviations)
