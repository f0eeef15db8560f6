"""Builds the DecoderSpec of a GGUF file from its metadata and tensors. Families override single
fields.

GGUF has no keys for biases, head norms and a tied language-model head: the reader infers them from
which tensors the file has, and the kind of the norms from the key of their eps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from penstock.base.errors import ModelError
from penstock.kernels.routing import Routing
from penstock.models.configuration.gguf_rope import gguf_rope_axes, gguf_rope_scaling
from penstock.models.configuration.unsupported_keys import (
    GGUF_EXPERTS_NEUTRAL,
    GGUF_NEUTRAL,
    refuse_unsupported,
)
from penstock.models.decoder.experts_spec import ExpertsSpec, check_choice
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.spec_limits import MAX_LAYERS
from penstock.quant.gguf.gguf_file import GgufFile

ALL_LAYERS: Final = 0
"""A `window_period` with which every layer has the window."""


def gguf_decoder_spec(
    file: GgufFile,
    family_keys: frozenset[str] = frozenset(),
    window_period: int = ALL_LAYERS,
) -> DecoderSpec:
    """Return the spec of a Llama-like decoder.

    - `family_keys`: keys that the caller itself reads and that are therefore not refused, without
      the "<architecture>." prefix. If one of them has a size per layer, the spec has the largest.
    - `window_period`: the last layer of each `window_period` layers has no sliding window, unless
      the file has the key `attention.sliding_window_pattern`.

    Raises ModelError naming a key that is missing or not supported.
    """
    where, architecture = str(file.path), file.text("general.architecture")
    neutral = {key: values for key, values in GGUF_NEUTRAL.items() if key not in family_keys}
    refuse_unsupported(where, file.metadata, neutral, f"{architecture}.")
    experts = _experts(file, architecture, family_keys)
    heads = file.integer(f"{architecture}.attention.head_count")
    width = file.integer(f"{architecture}.embedding_length")
    head_dim = file.integer(f"{architecture}.attention.key_length", width // max(heads, 1))
    rotary_dim = file.integer(f"{architecture}.rope.dimension_count", head_dim)
    same = {"attention.value_length", "attention.key_length_swa", "attention.value_length_swa"}
    for key in sorted(same - family_keys):
        require_equal(file, f"{architecture}.{key}", head_dim)
    if "rope.dimension_count_swa" not in family_keys:
        require_equal(file, f"{architecture}.rope.dimension_count_swa", rotary_dim)
    predicting = file.integer(f"{architecture}.nextn_predict_layers", 0)
    layers = file.integer(f"{architecture}.block_count") - predicting
    if not 1 <= layers <= MAX_LAYERS:
        raise ModelError(f"{where}: {architecture}.block_count {layers} is not in 1..{MAX_LAYERS}")
    theta = file.real(f"{architecture}.rope.freq_base", 10_000.0)
    local_theta = file.real(f"{architecture}.rope.freq_base_swa", theta)
    scaling, axes = gguf_rope_scaling(file, architecture), gguf_rope_axes(file, architecture)
    rope = RopeSpec(theta, rotary_dim, scaling, axes)
    rms_norm_key = f"{architecture}.attention.layer_norm_rms_epsilon"
    layer_norm_key = f"{architecture}.attention.layer_norm_epsilon"
    layer_norm = rms_norm_key not in file.metadata and layer_norm_key in file.metadata

    def size(key: str, default: int | None) -> int:
        given = file.metadata.get(f"{architecture}.{key}")
        if key in family_keys and isinstance(given, np.ndarray):
            return max(layer_integers(file, f"{architecture}.{key}", layers))
        return uniform_integer(file, f"{architecture}.{key}", default)

    return DecoderSpec(
        architecture=architecture,
        hidden_size=width,
        num_heads=heads,
        num_kv_heads=size("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=size(
            "feed_forward_length", experts.intermediate_size if experts else None
        ),
        vocab_size=_vocab_size(file),
        norm_eps=file.real(layer_norm_key if layer_norm else rms_norm_key),
        rope=rope,
        layers=tuple(
            LayerSpec(window, experts=experts)
            for window in _windows(file, architecture, layers, window_period)
        ),
        max_model_len=file.integer(f"{architecture}.context_length"),
        qkv_bias=any(f"blk.0.{name}.bias" in file.tensors for name in ("attn_q", "attn_qkv")),
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        tied_head="output.weight" not in file.tensors,
        head_bias="output.bias" in file.tensors,
        norm_kind="layer" if layer_norm else "rms",
        norm_bias=layer_norm and "output_norm.bias" in file.tensors,
        local_rope=None if local_theta == theta else replace(rope, theta=local_theta),
        attention_scale=file.real(f"{architecture}.attention.scale", 0.0) or None,
        embedding_scale=file.real(f"{architecture}.embedding_scale", 0.0) or 1.0,
        bidirectional=_is_bidirectional(file, architecture),
        predicting_layers=predicting,
    )


def require_equal(file: GgufFile, key: str, value: int) -> None:
    """Check that `key` is absent or equals `value`, because all layers must have the same size.
    Raises ModelError naming the key."""
    given = file.integer(key, value)
    if given != value:
        raise ModelError(f"{file.path}: {key} {given} is not supported, only {value}")


def layer_integers(file: GgufFile, key: str, layers: int) -> tuple[int, ...]:
    """Return the value of `key` for each of `layers` layers: those of an array, or the only one.
    Raises ModelError naming the key."""
    if not isinstance(file.metadata.get(key), np.ndarray):
        return (file.integer(key),) * layers
    entries = file.numbers(key)
    if len(entries) != layers or entries.dtype.kind not in "iu" or entries.min() < 1:
        raise ModelError(
            f"{file.path}: {key}: expected {layers} positive integers, not {entries.tolist()}"
        )
    return tuple(int(entry) for entry in entries)


def uniform_integer(file: GgufFile, key: str, default: int | None = None) -> int:
    """Return an integer, or the only value of an array with one entry per layer, in which 0 marks a
    layer without the block that the key describes. Raises ModelError naming the key if entries
    differ or if it is absent and `default` is None."""
    if not isinstance(file.metadata.get(key), np.ndarray):
        return file.integer(key, default)
    entries = file.numbers(key)
    values = (
        {int(value) for value in entries[entries != 0]} if entries.dtype.kind in "iu" else set()
    )
    if len(values) != 1:
        raise ModelError(f"{file.path}: {key}: the entries {entries.tolist()} are not supported")
    return values.pop()


def _vocab_size(file: GgufFile) -> int:
    info = file.tensors.get("token_embd.weight")
    if info is None:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing")
    return info.shape[0]


def _is_bidirectional(file: GgufFile, architecture: str) -> bool:
    key = f"{architecture}.attention.causal"
    if file.boolean(key) is not False:
        return False
    if file.integer(f"{architecture}.attention.sliding_window", 0):
        raise ModelError(
            f"{file.path}: {key} false is not supported together with a sliding window"
        )
    return True


def _windows(file: GgufFile, architecture: str, layers: int, period: int) -> list[int]:
    """Return the sliding window of each layer in tokens, 0 for full attention.
    `attention.sliding_window_pattern` in the file is an array with a true entry for each layer that
    has the window, or a number that replaces `period`."""
    key = f"{architecture}.attention.sliding_window_pattern"
    window = file.integer(f"{architecture}.attention.sliding_window", 0)
    if isinstance(file.metadata.get(key), np.ndarray):
        marks = file.numbers(key).tolist()
        if len(marks) != layers:
            raise ModelError(f"{file.path}: {key} has {len(marks)} entries for {layers} layers")
        return [window if mark else 0 for mark in marks]
    period = file.integer(key, period)
    if period < 0:
        raise ModelError(f"{file.path}: {key} {period} is negative")
    return [
        window if period == ALL_LAYERS or index % period != period - 1 else 0
        for index in range(layers)
    ]


def _experts(file: GgufFile, architecture: str, family_keys: frozenset[str]) -> ExpertsSpec | None:
    """Return the spec of each layer's mixture of experts, or None for a dense model. Raises
    ModelError naming a key that is not supported."""
    count = file.integer(f"{architecture}.expert_count", 0)
    if not count:
        return None
    neutral = {k: values for k, values in GGUF_EXPERTS_NEUTRAL.items() if k not in family_keys}
    refuse_unsupported(str(file.path), file.metadata, neutral, f"{architecture}.")
    shared_key = f"{architecture}.feed_forward_length"
    own_key = f"{architecture}.expert_feed_forward_length"
    renormalize = file.boolean(f"{architecture}.expert_weights_norm")
    per_token = file.integer(f"{architecture}.expert_used_count")
    check_choice(str(file.path), per_token)
    return ExpertsSpec(
        count=count,
        # Older files lack the key.
        routing=Routing(per_token, renormalize=renormalize is not False),
        intermediate_size=file.integer(own_key if own_key in file.metadata else shared_key),
    )
