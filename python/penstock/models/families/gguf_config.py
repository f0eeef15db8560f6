"""The metadata of a GGUF file as a DecoderSpec and as the model's own sampling."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from penstock.base.errors import ModelError
from penstock.dialog import Sampling
from penstock.models.decoder.spec import (
    MAX_LAYERS,
    DecoderSpec,
    LayerSpec,
    LinearScaling,
    LongRopeScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)
from penstock.models.decoder.tensor_names import LONGROPE_FACTORS
from penstock.models.families.granite_multipliers import with_multipliers
from penstock.models.families.moe_config import gguf_experts, gpt_oss_experts
from penstock.models.families.unsupported_keys import GGUF_NEUTRAL, Neutral, refuse_unsupported
from penstock.quant.gguf.gguf_file import GgufFile

ALL_LAYERS = 0  # as a period of windows
GEMMA3_PERIOD = 6
GEMMA3_LOCAL_THETA = 10_000.0
GPT_OSS_PERIOD = 2
# An ext_factor of -1 is one that is not set.
YARN_NEUTRAL: Final[Neutral] = {"yarn_ext_factor": (1, -1)}
LONGROPE_NEUTRAL: Final[Neutral] = {"yarn_ext_factor": (0, -1)}
OTHER_NEUTRAL: Final[Neutral] = {"yarn_ext_factor": (0, -1), "attn_factor": (1,)}
# What Granite's files have beside the scales of attention and embeddings, which any file may have.
MULTIPLIERS: Final = frozenset({"residual_scale", "logit_scale"})
GEMMA3_27B_LAYERS = 62  # the one member whose scale is not that of its head dimension


def decoder_spec(
    file: GgufFile, architecture: str, own: frozenset[str] = frozenset()
) -> DecoderSpec:
    """The decoder of a Llama-family file. Biases, head norms and an untied head are there where
    their tensors are: GGUF has no keys for them. `own`: keys that the caller reads. Raises
    ModelError naming a key that is missing or asks for what is not supported."""
    where = str(file.path)
    neutral = {key: values for key, values in GGUF_NEUTRAL.items() if key not in own}
    refuse_unsupported(where, file.metadata, neutral, f"{architecture}.")
    experts = gguf_experts(file, architecture)
    heads = file.integer(f"{architecture}.attention.head_count")
    width = file.integer(f"{architecture}.embedding_length")
    head_dim = file.integer(f"{architecture}.attention.key_length", width // max(heads, 1))
    rotated = file.integer(f"{architecture}.rope.dimension_count", head_dim)
    for key in ("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"):
        require_equal(file, f"{architecture}.{key}", head_dim)
    require_equal(file, f"{architecture}.rope.dimension_count_swa", rotated)
    layers = file.integer(f"{architecture}.block_count")
    if not 1 <= layers <= MAX_LAYERS:
        raise ModelError(f"{where}: {architecture}.block_count {layers} is not in 1..{MAX_LAYERS}")
    theta = file.real(f"{architecture}.rope.freq_base", 10_000.0)
    local_theta = file.real(f"{architecture}.rope.freq_base_swa", theta)
    rope = RopeSpec(theta, rotated, rope_scaling(file, architecture))
    return DecoderSpec(
        architecture=architecture,
        width=width,
        heads=heads,
        kv_heads=file.integer(f"{architecture}.attention.head_count_kv", heads),
        head_dim=head_dim,
        ff=file.integer(f"{architecture}.feed_forward_length", experts.ff if experts else None),
        vocab=_vocab(file),
        norm_eps=file.real(f"{architecture}.attention.layer_norm_rms_epsilon"),
        rope=rope,
        layers=tuple(
            LayerSpec(window, experts=experts)
            for window in _windows(file, architecture, layers, ALL_LAYERS)
        ),
        max_model_len=file.integer(f"{architecture}.context_length"),
        qkv_bias=any(f"blk.0.{name}.bias" in file.tensors for name in ("attn_q", "attn_qkv")),
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        tied_head="output.weight" not in file.tensors,
        local_rope=None if local_theta == theta else replace(rope, theta=local_theta),
        attention_scale=file.real(f"{architecture}.attention.scale", 0.0) or None,
        embedding_scale=file.real(f"{architecture}.embedding_scale", 0.0) or 1.0,
        bidirectional=_is_bidirectional(file, architecture),
    )


def granite_spec(file: GgufFile, architecture: str, plain: DecoderSpec) -> DecoderSpec:
    """A Granite: a scale of 0 is none, and positions that are said not to be trained are no
    positions at all. Raises ModelError for a scale that is negative."""
    rotary = file.boolean(f"{architecture}.rope.scaling.finetuned") is not False
    layers = tuple(replace(layer, rotary=rotary) for layer in plain.layers)
    return with_multipliers(
        replace(plain, layers=layers, qk_norm=False),
        str(file.path),
        embedding=plain.embedding_scale,
        residual=file.real(f"{architecture}.residual_scale", 0.0) or 1.0,
        logits_divisor=file.real(f"{architecture}.logit_scale", 0.0) or 1.0,
    )


def gemma_spec(file: GgufFile, architecture: str, plain: DecoderSpec) -> DecoderSpec:
    """A Gemma 3: what its files leave to the reader's knowledge is written here. Unless its file
    says otherwise, all layers but every sixth have the window, and a rope of their own."""
    windows = _windows(file, architecture, len(plain.layers), GEMMA3_PERIOD)
    scale = plain.head_dim**-0.5
    if len(windows) == GEMMA3_27B_LAYERS:
        scale = (plain.width / plain.heads) ** -0.5
    local_theta = file.real(f"{architecture}.rope.freq_base_swa", GEMMA3_LOCAL_THETA)
    return replace(
        plain,
        layers=tuple(map(LayerSpec, windows)),
        # Not scaled, as the authors' config has it; llama.cpp multiplies by attn_factor here too.
        local_rope=RopeSpec(local_theta, plain.rope.rotary_dim),
        attention_scale=plain.attention_scale or scale,
        embedding_scale=file.real(f"{architecture}.embedding_scale", 0.0) or plain.width**0.5,
        sandwich_norms=True,
        activation="gelu_tanh",
    )


def gpt_oss_spec(file: GgufFile, architecture: str, plain: DecoderSpec) -> DecoderSpec:
    """A gpt-oss: every other layer has the window, all are mixtures of its own kind. Raises
    ModelError for a file without experts."""
    experts = plain.layers[0].experts
    if experts is None:
        raise ModelError(f"{file.path}: {architecture}.expert_count is missing")
    windows = _windows(file, architecture, len(plain.layers), GPT_OSS_PERIOD)
    rope = plain.rope
    if isinstance(rope.scaling, YarnScaling):
        # As the authors' config has it; no key tells, and llama.cpp rounds the ramp's ends.
        rope = replace(rope, scaling=replace(rope.scaling, truncate=False))
    own = gpt_oss_experts(experts)
    layers = tuple(LayerSpec(window, experts=own) for window in windows)
    return replace(plain, rope=rope, layers=layers, sinks=True)


def rope_scaling(file: GgufFile, architecture: str) -> RopeScaling | None:
    """How the file scales positions. A factor without a type is linear, also under the key's older
    name; one of 0 or 1 scales nothing. Raises ModelError naming what is not supported."""
    prefix = f"{architecture}.rope.scaling"
    factor = file.real(f"{prefix}.factor", file.real(f"{architecture}.rope.scale_linear", 0.0))
    kind = file.text(f"{prefix}.type", "linear")
    if kind == "longrope" or any(name in file.tensors for name in LONGROPE_FACTORS):
        return _longrope(file, architecture, factor)
    if kind not in ("none", "linear", "yarn"):
        raise ModelError(f"{file.path}: {prefix}.type {kind!r} is not supported")
    if factor < 0:
        raise ModelError(f"{file.path}: {prefix}.factor {factor} is not positive")
    if kind == "yarn":
        return _yarn(file, architecture, factor or 1.0)
    refuse_unsupported(str(file.path), file.metadata, OTHER_NEUTRAL, f"{prefix}.")
    return LinearScaling(factor) if kind == "linear" and factor not in (0.0, 1.0) else None


def require_equal(file: GgufFile, key: str, value: int) -> None:
    """Raise ModelError where `key` is there with another value: all layers have one size."""
    given = file.integer(key, value)
    if given != value:
        raise ModelError(f"{file.path}: {key} {given} is not supported, only {value}")


def sampling_defaults(file: GgufFile) -> Sampling:
    """`general.sampling.*`, which newer converters copy from generation_config.json."""

    def real(key: str) -> float | None:
        return file.real(key) if key in file.metadata else None

    top_k = "general.sampling.top_k"
    return Sampling(
        temperature=real("general.sampling.temp"),
        top_k=file.integer(top_k) if top_k in file.metadata else None,
        top_p=real("general.sampling.top_p"),
        min_p=real("general.sampling.min_p"),
        repetition_penalty=real("general.sampling.penalty_repeat"),
    )


def _vocab(file: GgufFile) -> int:
    info = file.tensors.get("token_embd.weight")
    if info is None:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing")
    return info.shape[0]


def _is_bidirectional(file: GgufFile, architecture: str) -> bool:
    key = f"{architecture}.attention.causal"
    if file.boolean(key) is not False:
        return False
    if file.integer(f"{architecture}.attention.sliding_window", 0):
        raise ModelError(f"{file.path}: {key} false is not supported beside a sliding window")
    return True


def _windows(file: GgufFile, architecture: str, layers: int, period: int) -> list[int]:
    """Of each layer, 0 where it attends to everything. `attention.sliding_window_pattern` marks the
    layers that have the window, or is the period of which the last one has none; without the key it
    is `period`."""
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


def _yarn(file: GgufFile, architecture: str, factor: float) -> YarnScaling:
    prefix = f"{architecture}.rope.scaling"
    refuse_unsupported(str(file.path), file.metadata, YARN_NEUTRAL, f"{prefix}.")
    context = file.integer(f"{architecture}.context_length")
    own_factor = file.real(f"{prefix}.attn_factor", 1.0)
    return YarnScaling(
        factor=factor,
        original_context=file.integer(f"{prefix}.original_context_length", context),
        attention_factor=own_factor * (1 + 0.1 * math.log(max(factor, 1.0))),
        beta_fast=file.real(f"{prefix}.yarn_beta_fast", 32.0),
        beta_slow=file.real(f"{prefix}.yarn_beta_slow", 1.0),
    )


def _longrope(file: GgufFile, architecture: str, factor: float) -> LongRopeScaling:
    prefix = f"{architecture}.rope.scaling"
    missing = [name for name in LONGROPE_FACTORS if name not in file.tensors]
    if missing:
        raise ModelError(f"{file.path}: {prefix}.type longrope: tensor {missing[0]} is missing")
    if factor not in (0.0, 1.0):
        raise ModelError(f"{file.path}: {prefix}.factor {factor} beside longrope is not supported")
    refuse_unsupported(str(file.path), file.metadata, LONGROPE_NEUTRAL, f"{prefix}.")
    short, long = (tuple(file.vector(name).tolist()) for name in LONGROPE_FACTORS)
    context = file.integer(f"{architecture}.context_length")
    original = file.integer(f"{prefix}.original_context_length", context)
    return LongRopeScaling(short, long, original, file.real(f"{prefix}.attn_factor", 1.0))
