"""The metadata of a GGUF file that describe a DecoderSpec: the inverse of `gguf_decoder_spec` and
`gguf_mixtures`. Families add single keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from penstock.models.configuration.gguf_rope import gguf_rope_keys
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.spec import DecoderSpec

_GATING: Final = {"softmax": 1, "sigmoid": 2}

Keys = Mapping[str, Any]
"""Keys without the "<architecture>." prefix, and their values."""


def no_keys(spec: DecoderSpec) -> Keys:
    """Return the keys of a family that has none of its own."""
    return {}


def gguf_decoder_keys(spec: DecoderSpec) -> dict[str, Any]:
    """Return the keys of a decoder and their values, without the "<architecture>." prefix."""
    attending = [layer for layer in spec.layers if layer.has_attention]
    rms = spec.norm_kind == "rms"
    keys: dict[str, Any] = {
        "block_count": len(spec.layers),
        "context_length": spec.max_model_len,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": one_or_each([spec.feed_forward_size(one) for one in spec.layers]),
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        f"attention.layer_norm_{'rms_' if rms else ''}epsilon": float(spec.norm_eps),
        "vocab_size": spec.vocab_size,
    }
    if len(attending) == len(spec.layers):
        keys["attention.head_count_kv"] = one_or_each([spec.heads(one)[1] for one in attending])
    windows = {layer.window for layer in spec.layers} - {0}
    if windows:
        keys["attention.sliding_window"] = max(windows)
    mixtures = [layer.experts for layer in spec.layers]
    first = next((own for own in mixtures if own is not None), None)
    if first is not None:
        keys |= _expert_keys(first)
        if leading := mixtures.index(first):
            keys["leading_dense_block_count"] = leading
    return keys | gguf_rope_keys(spec)


def one_or_each(values: Sequence[int]) -> Any:
    """Return the value of all layers, or an array if they differ."""
    return values[0] if len(set(values)) == 1 else np.array(values, np.int32)


def windows_of_each(spec: DecoderSpec) -> Keys:
    """Return the key that tells for each layer whether it has a sliding window, if they differ."""
    marks = [layer.window > 0 for layer in spec.layers]
    mixed = len(set(marks)) > 1
    return {"attention.sliding_window_pattern": np.array(marks)} if mixed else {}


def kv_heads_of_each(spec: DecoderSpec) -> Keys:
    """Return the key of the KV heads with a 0 for each layer without attention."""
    counts = [spec.heads(own)[1] if own.has_attention else 0 for own in spec.layers]
    return {"attention.head_count_kv": np.array(counts, np.int32)}


def _expert_keys(experts: ExpertsSpec) -> dict[str, Any]:
    """Return the keys of a mixture of experts. Values that mean nothing are left out, because some
    families do not know the keys."""
    routing = experts.routing
    keys: dict[str, Any] = {
        "expert_count": experts.count,
        "expert_used_count": experts.per_token,
        "expert_feed_forward_length": experts.intermediate_size,
        "expert_weights_norm": routing.renormalize,
    }
    if routing.scoring in _GATING:
        keys["expert_gating_func"] = _GATING[routing.scoring]
    if routing.scale != 1.0:
        keys["expert_weights_scale"] = float(routing.scale)
    if routing.groups > 1:
        keys["expert_group_count"] = routing.groups
        keys["expert_group_used_count"] = routing.groups_per_token
    if experts.shared_size:
        keys["expert_shared_feed_forward_length"] = experts.shared_size
        if experts.shared_size % experts.intermediate_size == 0:
            keys["expert_shared_count"] = experts.shared_size // experts.intermediate_size
    return keys
