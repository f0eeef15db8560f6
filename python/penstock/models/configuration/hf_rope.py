"""Reads the rotary embedding (RoPE) from a config.json.

Both spellings of the rotary keys are read: `rope_parameters` (transformers 5), and `rope_theta`
with `rope_scaling` (earlier versions).
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.decoder.rope import chunked_axes, interleaved_axes
from penstock.models.decoder.rope_spec import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)
from penstock.models.decoder.spec_limits import MAX_WIDTH

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"


class RopeParameters(msgspec.Struct):
    """The rotary keys, from `rope_parameters`, `rope_scaling` or the config itself."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool = True
    short_factor: list[float] | None = None
    long_factor: list[float] | None = None
    mrope_section: list[int] | None = None
    mrope_interleaved: bool | None = None


def head_dim(config: HfConfig) -> int:
    """Return the head dimension: `head_dim` of the config, or else hidden size / number of
    heads."""
    return config.head_dim or config.hidden_size // max(config.num_attention_heads, 1)


def rope_spec(config: HfConfig, where: str) -> RopeSpec:
    """Return the RoPE spec of the layers with full attention. Raises ModelError that starts with
    `where` for an unknown scaling."""
    return _rope(config, _rope_parameters(config, where, FULL), config.rope_theta, where)


def local_rope_spec(config: HfConfig, where: str, theta: float | None = None) -> RopeSpec | None:
    """Return the RoPE spec of the layers with a sliding window, or None if all layers use the same
    one.

    `theta`: the base of these layers, if the family has a separate key for it. The scaling of the
    full-attention layers is not applied, as Gemma's configs state: "sliding_attention":
    {"rope_type": "default"}.
    """
    if SLIDING in (config.rope_parameters or {}):
        return _rope(config, _rope_parameters(config, where, SLIDING), theta, where)
    return None if theta is None else RopeSpec(theta, head_dim(config))


def _rope_parameters(config: HfConfig, where: str, layer_type: str) -> RopeParameters:
    """Return the rotary keys for the layers of one type, from `rope_scaling` or `rope_parameters`.
    If a config has both, `rope_scaling` takes precedence: a user added it by hand to a config that
    transformers had saved."""
    given = config.rope_parameters or {}
    older = config.rope_scaling if layer_type == FULL else None
    try:
        if FULL in given or SLIDING in given:
            own = msgspec.convert(given.get(layer_type) or {}, dict[str, Any])
            return msgspec.convert(own | (older or {}), RopeParameters)
        return msgspec.convert(older or given, RopeParameters)
    except msgspec.ValidationError as error:
        name = "rope_scaling" if older else "rope_parameters"
        raise ModelError(f"{where}: {name}: {error}") from None


def _rope(config: HfConfig, rope: RopeParameters, theta: float | None, where: str) -> RopeSpec:
    """Return the RoPE spec that the rotary keys `rope` describe. `theta`: the base if `rope` has
    none."""
    given = (rope.partial_rotary_factor, config.partial_rotary_factor, 1.0)
    partial = next(factor for factor in given if factor is not None)
    if not 0 < partial <= 1:
        raise ModelError(f"{where}: partial_rotary_factor {partial} is not above 0 and at most 1")
    theta = next(base for base in (rope.rope_theta, theta, 10_000.0) if base is not None)
    scaling = _scaling(config, rope, where)
    return RopeSpec(theta, int(head_dim(config) * partial), scaling, _axes(config, rope, where))


def _axes(config: HfConfig, rope: RopeParameters, where: str) -> tuple[int, ...]:
    """Return `RopeSpec.axes`."""
    sections = rope.mrope_section
    if sections is None:
        return ()
    if len(sections) != 3 or min(sections) < 0 or max(sections) > MAX_WIDTH:
        raise ModelError(f"{where}: mrope_section {sections} is not a list of three sizes")
    interleaved = rope.mrope_interleaved
    if interleaved is None:
        interleaved = config.mrope_interleaved
    return interleaved_axes(sections) if interleaved else chunked_axes(sections)


def _scaling(config: HfConfig, rope: RopeParameters, where: str) -> RopeScaling | None:
    kind = rope.rope_type or rope.type or "default"
    if kind == "su" or (kind == "yarn" and rope.long_factor):  # the first release of Phi-3
        kind = "longrope"
    if kind in ("default", "mrope"):  # `RopeSpec.axes` describes mrope
        return None
    if kind not in ("linear", "llama3", "yarn", "longrope"):
        raise ModelError(
            f"{where}: rope scaling {kind!r} is not supported, only default, linear, llama3, yarn,"
            " longrope"
        )
    original = (
        config.original_max_position_embeddings
        or rope.original_max_position_embeddings
        or config.max_position_embeddings
    )
    factor = rope.factor or config.max_position_embeddings / original
    if factor <= 0 or original <= 0:
        raise ModelError(f"{where}: rope scaling factor {factor}, original context {original}")
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "yarn":
        return _yarn(rope, factor, original)
    if kind == "longrope":
        return _longrope(rope, factor, original, where)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    if low is None or high is None or low >= high:
        raise ModelError(f"{where}: llama3 rope scaling needs low_freq_factor < high_freq_factor")
    return Llama3Scaling(factor, low, high, original)


def _yarn(rope: RopeParameters, factor: float, original: int) -> YarnScaling:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    attention_factor = rope.attention_factor
    if attention_factor is None and rope.mscale and rope.mscale_all_dim:
        attention_factor = mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return YarnScaling(
        factor=factor,
        original_context=original,
        attention_factor=mscale(1.0) if attention_factor is None else attention_factor,
        beta_fast=rope.beta_fast or 32.0,
        beta_slow=rope.beta_slow or 1.0,
        truncate=rope.truncate,
    )


def _longrope(rope: RopeParameters, factor: float, original: int, where: str) -> LongRopeScaling:
    short, long = rope.short_factor, rope.long_factor
    if not short or not long:
        raise ModelError(f"{where}: longrope rope scaling needs short_factor and long_factor")
    attention_factor = rope.attention_factor
    if attention_factor is None:
        longer = factor > 1 and original > 1
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if longer else 1.0
    return LongRopeScaling(tuple(short), tuple(long), original, attention_factor)
