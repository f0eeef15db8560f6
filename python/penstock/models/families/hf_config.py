"""config.json and generation_config.json of a Hugging Face folder, decoded at the door.

Both spellings of the rotary keys are read: `rope_parameters` (transformers 5) and `rope_theta`
with `rope_scaling` (before it).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from penstock.base.errors import ModelError
from penstock.dialog import Sampling
from penstock.models.decoder.spec import (
    LayerSpec,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)
from penstock.quant.json_file import read_json

FULL = "full_attention"
SLIDING = "sliding_attention"

SlidingWindowRule = Literal["none", "all", "typed", "switched", "late", "unrotated", "pattern"]
"""Which layers of a family have the window that its config names. none: whatever it says. all.
typed: those of `layer_types`, or else all.
switched: all, where `use_sliding_window` says so. late, unrotated: where it says so, those of
`layer_types`, or else those from `max_window_layers` on, or those without rotation. pattern: those
of `layer_types`, or else all but the last of each `sliding_window_pattern` layers."""
_SWITCHED = ("switched", "late", "unrotated")


class RopeParameters(msgspec.Struct):
    """The rotary keys, wherever they stood."""

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


class HfConfig(msgspec.Struct):
    """The keys that a Llama-family decoder reads. `rope_parameters`: one set, or one for each of
    the layer types. None: the family's default."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    hidden_activation: str | None = None
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    attention_out_bias: bool | None = None
    mlp_bias: bool = False
    use_bias: bool | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    max_window_layers: int | None = None
    sliding_window_pattern: int | None = None
    layer_types: list[str] | None = None
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: int | None = None
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_local_base_freq: float | None = None
    original_max_position_embeddings: int | None = None
    query_pre_attn_scalar: float | None = None
    embedding_multiplier: float = 1.0
    attention_multiplier: float | None = None
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    use_bidirectional_attention: bool | None = None
    is_causal: bool | None = None
    num_experts: int | None = None
    num_local_experts: int | None = None
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int | None = None
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None


class GenerationConfig(msgspec.Struct):
    """The keys of generation_config.json that a server honours."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_token_id: int | list[int] | None = None

    def sampling(self) -> Sampling:
        """The model's own sampling; all None where it names none (`do_sample` false says that the
        other numbers do not apply)."""
        if not self.do_sample:
            return Sampling(repetition_penalty=self.repetition_penalty)
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
        )


def read_generation_config(folder: Path) -> GenerationConfig:
    """generation_config.json of `folder`; all defaults where there is none."""
    path = folder / "generation_config.json"
    return read_json(path, GenerationConfig) if path.exists() else GenerationConfig()


def head_dim(config: HfConfig) -> int:
    """The head dimension, written or implied."""
    return config.head_dim or config.hidden_size // max(config.num_attention_heads, 1)


def is_bidirectional(config: HfConfig, layers: tuple[LayerSpec, ...], where: str) -> bool:
    """Whether a token sees those after it. Raises ModelError where `is_causal` says so of a model
    with windows: it does not say whether they reach to one side or to both."""
    if config.use_bidirectional_attention or config.is_causal is not False:
        return bool(config.use_bidirectional_attention)
    if any(layer.window for layer in layers):
        raise ModelError(f"{where}: is_causal false is not supported beside a sliding window")
    return True


def rope_spec(config: HfConfig, where: str) -> RopeSpec:
    """The rotary embedding of the layers that attend to everything. Raises ModelError naming a
    scaling that we do not know."""
    return _rope(config, rope_parameters(config, where, FULL), config.rope_theta, where)


def max_model_len(config: HfConfig, rope: RopeSpec) -> int:
    """How far the model goes. With YaRN a config may give the length before or after it."""
    if not isinstance(rope.scaling, YarnScaling):
        return config.max_position_embeddings
    scaled = round(rope.scaling.original_context * rope.scaling.factor)
    return max(config.max_position_embeddings, scaled)


def local_rope_spec(config: HfConfig, where: str) -> RopeSpec | None:
    """That of the layers with a window, where the config has another for them. Scaling is of the
    others alone, as Gemma's authors publish it ("sliding_attention": {"rope_type": "default"})."""
    theta = config.rope_local_base_freq
    if SLIDING in (config.rope_parameters or {}):
        return _rope(config, rope_parameters(config, where, SLIDING), theta, where)
    return None if theta is None else RopeSpec(theta, head_dim(config))


def rope_parameters(config: HfConfig, where: str, layer_type: str) -> RopeParameters:
    """The rotary keys of the layers of one type, in whichever of three forms they are written. Of
    a config with both spellings the older one counts: somebody added it to what was saved."""
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
    """`theta`: where the rotary keys name none."""
    partial = rope.partial_rotary_factor or config.partial_rotary_factor or 1.0
    theta = rope.rope_theta or theta or 10_000.0
    return RopeSpec(theta, int(head_dim(config) * partial), _scaling(config, rope, where))


def refuse_partial_rotary(config: HfConfig, rope: RopeSpec, where: str) -> None:
    """Raise ModelError where a part of a head is rotated: of a family that has no such members,
    readers do not agree on what it means."""
    size = head_dim(config)
    if rope.rotary_dim != size:
        raise ModelError(
            f"{where}: partial_rotary_factor {rope.rotary_dim / size} is not supported"
        )


def layer_specs(config: HfConfig, rule: SlidingWindowRule, where: str) -> tuple[LayerSpec, ...]:
    """Window and rotation of each layer. Raises ModelError for keys that do not fit."""
    layers = config.num_hidden_layers
    if not 1 <= layers <= 1024:
        raise ModelError(f"{where}: num_hidden_layers {layers} is not in 1..1024")
    types = config.layer_types
    if types is not None and len(types) != layers:
        raise ModelError(f"{where}: layer_types has {len(types)} entries")
    unknown = set(types or []) - {FULL, SLIDING}
    if unknown:
        raise ModelError(f"{where}: layer_types: {sorted(unknown)} are not supported")
    rotary = _rotary(config, where)
    windows = _windows(config, rule, rotary, where)
    return tuple(map(LayerSpec, windows, rotary))


def _rotary(config: HfConfig, where: str) -> list[bool]:
    """Whether each layer rotates queries and keys."""
    layers = config.num_hidden_layers
    given, interval = config.no_rope_layers, config.no_rope_layer_interval
    if given:
        if len(given) != layers:
            raise ModelError(f"{where}: no_rope_layers has {len(given)} entries")
        return [bool(rotates) for rotates in given]
    if interval is not None and interval < 1:
        raise ModelError(f"{where}: no_rope_layer_interval {interval} is not positive")
    return [interval is None or (i + 1) % interval != 0 for i in range(layers)]


def _windows(
    config: HfConfig, rule: SlidingWindowRule, rotary: list[bool], where: str
) -> list[int]:
    off = rule == "none" or (rule in _SWITCHED and not config.use_sliding_window)
    window = 0 if off else _window(config)
    if rule in ("typed", "late", "unrotated", "pattern"):
        return [window * slides for slides in _sliding(config, rule, rotary, where)]
    return [window] * config.num_hidden_layers


def _sliding(
    config: HfConfig, rule: SlidingWindowRule, rotary: list[bool], where: str
) -> list[bool]:
    """Of each layer, by `layer_types` or the family's rule."""
    layers = config.num_hidden_layers
    if config.layer_types is not None:
        return [kind == SLIDING for kind in config.layer_types]
    if rule == "typed":
        return [True] * layers
    if rule == "unrotated":
        return [not rotates for rotates in rotary]
    if rule == "late":
        return [i >= (config.max_window_layers or 0) for i in range(layers)]
    period = config.sliding_window_pattern or 0
    if period < 1:
        raise ModelError(f"{where}: sliding_window_pattern {period} is not positive")
    return [(i + 1) % period != 0 for i in range(layers)]


def _window(config: HfConfig) -> int:
    """Positions back from a token, its own counted; where a token sees both ways, the config's
    number is that of both sides."""
    window = config.sliding_window or 0
    return window // 2 + 1 if window and config.use_bidirectional_attention else window


def _scaling(config: HfConfig, rope: RopeParameters, where: str) -> RopeScaling | None:
    kind = rope.rope_type or rope.type or "default"
    if kind == "su" or (kind == "yarn" and rope.long_factor):  # as Phi-3 was first published
        kind = "longrope"
    if kind in ("default", "mrope"):  # positions in several dimensions are one, of text
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
