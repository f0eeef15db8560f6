"""Compares two specs of one model that were read from files of different formats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from penstock.models.decoder.block_specs import PLAIN_ATTENTION
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.rope_spec import Llama3Scaling, RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec

_OF_THE_FILE: Final = frozenset(
    {"architecture", "norm_offset", "interleaved_rope", "predicting_layers", "mtp"}
)
"""Fields about the file and not about what is computed from it."""
_BY_LAYER: Final = frozenset(
    {"num_kv_heads", "head_dim", "intermediate_size", "norms", "rope", "local_rope"}
)
"""Fields whose values are compared layer by layer."""
_OF_MEDIA: Final = frozenset({"media_visibility"})
_FORMS: Final = frozenset({"form", "layout"})
_TOLERANCE: Final = 1e-5  # GGUF files have float32 numbers


def first_difference(one: DecoderSpec, other: DecoderSpec) -> str | None:
    """Return the first field in which two specs compute different results from text, with both
    values: "logit_cap: 30.0 and 0.0"; None if there is none. RoPE scaling that GGUF files have as a
    tensor is not compared."""
    return _difference(_meaning(one), _meaning(other), "")


def _meaning(spec: DecoderSpec) -> Mapping[str, Any]:
    """Return the fields that are compared, with defaults filled in."""
    left_out = _OF_THE_FILE | _BY_LAYER | _OF_MEDIA
    found = {one.name: getattr(spec, one.name) for one in fields(spec) if one.name not in left_out}
    own = spec.per_layer_inputs
    if own is not None:
        found["per_layer_inputs"] = replace(own, stand_in=0, media_tokens=())
    if not spec.qk_norm:
        found["qk_norm_form"] = None
    if spec.attention_scale is None:
        found["attention_scale"] = spec.head_dim**-0.5
    found["layers"] = tuple(_layer(spec, layer) for layer in spec.layers)
    found["rope"] = tuple(_rope(spec, layer) for layer in spec.layers)
    return found


def _layer(spec: DecoderSpec, layer: LayerSpec) -> LayerSpec:
    attention = PLAIN_ATTENTION
    if layer.has_attention:
        _, kv_heads, dim = spec.heads(layer)
        own = layer.attention
        own_values = own.keys_are_values and own.cache_of is None
        attention = replace(own, num_kv_heads=kv_heads, head_dim=dim, keys_are_values=own_values)
    return replace(
        layer,
        window=layer.window if layer.has_attention else 0,
        rotary=layer.rotary and layer.has_attention,
        experts=None if layer.experts is None else _experts(layer.experts),
        intermediate_size=spec.feed_forward_size(layer) if layer.is_dense else None,
        attention=attention,
        norms=spec.layer_norms(layer),
    )


def _experts(experts: ExpertsSpec) -> ExpertsSpec:
    routing = experts.routing
    if routing.groups == 1:
        routing = replace(routing, groups_per_token=1, best_of_group=1)
    if routing.scoring == "softmax" or not routing.renormalize:
        routing = replace(routing, epsilon=0.0)
    return replace(experts, routing=routing)


def _rope(spec: DecoderSpec, layer: LayerSpec) -> RopeSpec | None:
    attends = layer.mixer is None or layer.mixer.attention is not None
    if not (layer.rotary and layer.has_mixer and attends):
        return None
    rope = replace(spec.layer_rope(layer), axes=(), turning_pairs=None)
    return replace(rope, scaling=None) if isinstance(rope.scaling, Llama3Scaling) else rope


def _difference(one: Any, other: Any, place: str) -> str | None:
    if is_dataclass(one) and type(one) is type(other):
        names = [own.name for own in fields(one) if own.name not in _FORMS]
        pairs = [(f"{place}.{name}", getattr(one, name), getattr(other, name)) for name in names]
    elif isinstance(one, Mapping):
        pairs = [(name, value, other[name]) for name, value in one.items()]
    elif isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        pairs = [(f"{place}[{index}]", *both) for index, both in enumerate(_zipped(one, other))]
    else:
        return None if _equal(one, other) else f"{place}: {one} and {other}"
    found = (_difference(left, right, name) for name, left, right in pairs)
    return next((text for text in found if text is not None), None)


def _zipped(one: Sequence[Any], other: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(one, other, strict=True))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=_TOLERANCE) or one == other
    return bool(one == other)
