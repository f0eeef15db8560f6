"""The metadata of a GGUF file as a DecoderSpec and as the model's own sampling."""

from __future__ import annotations

import math
from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.dialog import Sampling
from penstock.models.experts_config import gguf_experts
from penstock.models.spec import (
    MAX_LAYERS,
    DecoderSpec,
    LayerSpec,
    LinearScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)
from penstock.quant.gguf import GgufFile

GEMMA3_PERIOD = 6
GEMMA3_LOCAL_THETA = 10_000.0
GEMMA3_27B_LAYERS = 62  # the one member whose scale is not that of its head dimension


def decoder_spec(file: GgufFile, architecture: str) -> DecoderSpec:
    """The decoder of a Llama-family file. Biases, head norms and an untied head are there where
    their tensors are: GGUF has no keys for them."""
    where = str(file.path)
    experts = gguf_experts(file, architecture)
    heads = file.integer(f"{architecture}.attention.head_count")
    width = file.integer(f"{architecture}.embedding_length")
    head_dim = file.integer(f"{architecture}.attention.key_length", width // max(heads, 1))
    if file.integer(f"{architecture}.attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{where}: {architecture}.attention.value_length differs from key_length")
    layers = file.integer(f"{architecture}.block_count")
    if not 1 <= layers <= MAX_LAYERS:
        raise ModelError(f"{where}: {architecture}.block_count {layers} is not in 1..{MAX_LAYERS}")
    window = file.integer(f"{architecture}.attention.sliding_window", 0)
    return DecoderSpec(
        architecture=architecture,
        width=width,
        heads=heads,
        kv_heads=file.integer(f"{architecture}.attention.head_count_kv", heads),
        head_dim=head_dim,
        ff=file.integer(f"{architecture}.feed_forward_length", experts.ff if experts else None),
        vocab=_vocab(file),
        norm_eps=file.real(f"{architecture}.attention.layer_norm_rms_epsilon"),
        rope=RopeSpec(
            theta=file.real(f"{architecture}.rope.freq_base", 10_000.0),
            rotated=file.integer(f"{architecture}.rope.dimension_count", head_dim),
            scaling=_scaling(file, architecture),
        ),
        layers=(LayerSpec(window, experts=experts),) * layers,
        context_tokens=file.integer(f"{architecture}.context_length"),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        tied_head="output.weight" not in file.tensors,
    )


def gemma_spec(file: GgufFile, architecture: str, plain: DecoderSpec) -> DecoderSpec:
    """A Gemma 3: what its files leave to the reader's knowledge is written here. All layers but
    every sixth have the window, and a rope of their own."""
    window = plain.layers[0].window
    layers = tuple(
        LayerSpec(0 if (index + 1) % GEMMA3_PERIOD == 0 else window)
        for index in range(len(plain.layers))
    )
    scale = plain.head_dim**-0.5
    if len(layers) == GEMMA3_27B_LAYERS:
        scale = (plain.width / plain.heads) ** -0.5
    local_theta = file.real(f"{architecture}.rope.freq_base_swa", GEMMA3_LOCAL_THETA)
    return replace(
        plain,
        layers=layers,
        local_rope=RopeSpec(local_theta, plain.rope.rotated),
        attention_scale=scale,
        embedding_scale=plain.width**0.5,
        sandwich_norms=True,
        activation="gelu_tanh",
    )


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


def _scaling(file: GgufFile, architecture: str) -> RopeScaling | None:
    prefix = f"{architecture}.rope.scaling"
    kind = file.text(f"{prefix}.type", "none")
    old_factor = file.real(f"{architecture}.rope.scale_linear", 1.0)
    factor = file.real(f"{prefix}.factor", old_factor)
    if kind == "none" and f"{prefix}.factor" not in file.metadata and old_factor != 1.0:
        kind = "linear"
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind not in ("linear", "yarn"):
        raise ModelError(f"{file.path}: {prefix}.type {kind!r} is not supported")
    if factor <= 0:
        raise ModelError(f"{file.path}: {prefix}.factor {factor} is not positive")
    if kind == "linear":
        return LinearScaling(factor)
    own_factor = file.real(f"{prefix}.attn_factor", 1.0)
    return YarnScaling(
        factor=factor,
        original_context=file.integer(f"{prefix}.original_context_length"),
        attention_factor=own_factor * (1 + 0.1 * math.log(factor)),
        beta_fast=file.real(f"{prefix}.yarn_beta_fast", 32.0),
        beta_slow=file.real(f"{prefix}.yarn_beta_slow", 1.0),
    )
