"""Builds the DecoderSpec of a GGUF file whose attention is latent, and writes its keys: DeepSeek V2
and V3, Kimi K2, GLM-4.7-Flash, Mistral 4."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from penstock.base.errors import ModelError
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_experts import EXPERT_KEYS, gguf_mixtures
from penstock.models.configuration.gguf_keys import Keys
from penstock.models.decoder.block_specs import LayerAttention, QueryScaling
from penstock.models.decoder.mixers.latent_attention import LatentAttentionSpec
from penstock.models.decoder.rope_spec import RopeScaling, RopeSpec, YarnScaling
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile

_KEYS: Final = EXPERT_KEYS | {
    "attention.value_length",
    "attention.temperature_length",
    "attention.temperature_scale",
    "rope.scaling.yarn_log_multiplier",
}


def gguf_latent_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. Raises ModelError naming the key at fault."""
    architecture = file.text("general.architecture")
    plain = gguf_decoder_spec(file, _KEYS)
    mixer = _mixer(file, architecture, plain)
    mixer.check_sizes(str(file.path))
    attention = LayerAttention(query_scaling=_query_scaling(file, architecture, plain.rope))
    layers = tuple(replace(layer, mixer=mixer, attention=attention) for layer in plain.layers)
    rope = replace(plain.rope, scaling=_scaling(file, architecture, plain.rope))
    spec = replace(
        plain,
        layers=layers,
        rope=rope,
        num_kv_heads=plain.num_heads,
        head_dim=mixer.query_dim,
        qkv_bias=False,
        output_bias=False,
        qk_norm=False,
    )
    if spec.layers[0].experts is None:
        return spec
    # Files of DeepSeek V2, whose routers have no bias, do not name the scores.
    sigmoid = any(name.endswith(".exp_probs_b.bias") for name in file.tensors)
    softmax_of = 1 if architecture == "deepseek2" else 2
    return gguf_mixtures(
        file,
        spec,
        "sigmoid" if sigmoid else "softmax",
        renormalize=False,
        best_of_group=2 if sigmoid else softmax_of,
    )


def _mixer(file: GgufFile, architecture: str, plain: DecoderSpec) -> LatentAttentionSpec:
    """Return the spec of the attention. Older files have the sizes of keys and values under
    `key_length` and `value_length`, and one matrix for both."""
    keys = f"{architecture}.attention"
    split = "blk.0.attn_k_b.weight" in file.tensors
    query_dim = file.integer(f"{keys}.key_length_mla", 0) or file.integer(f"{keys}.key_length")
    value_dim = file.integer(f"{keys}.value_length_mla", 0) or file.integer(f"{keys}.value_length")
    rotated = plain.rope.rotary_dim
    compressed = "blk.0.attn_q_a.weight" in file.tensors
    return LatentAttentionSpec(
        heads=plain.num_heads,
        q_rank=file.integer(f"{keys}.q_lora_rank") if compressed else 0,
        kv_rank=file.integer(f"{keys}.kv_lora_rank"),
        plain_dim=query_dim - rotated,
        rotated_dim=rotated,
        value_dim=value_dim,
        scale=_scale(file, architecture, plain.rope, query_dim),
        form="split" if split else "joined",
    )


def _scale(file: GgufFile, architecture: str, rope: RopeSpec, query_dim: int) -> float:
    """Return the factor of scores, which with YaRN grows with the factor of the context."""
    scale = 1 / math.sqrt(max(query_dim, 1))
    if not isinstance(rope.scaling, YarnScaling):
        return scale
    own = file.real(f"{architecture}.rope.scaling.attn_factor", 1.0)
    growth = _log_multiplier(file, architecture) * math.log(max(rope.scaling.factor, 1.0))
    return scale * (own * (1 + growth)) ** 2


def _scaling(file: GgufFile, architecture: str, rope: RopeSpec) -> RopeScaling | None:
    """Return the RoPE scaling. If scores grow with the factor of YaRN, cosines and sines do not."""
    if not isinstance(rope.scaling, YarnScaling) or not _log_multiplier(file, architecture):
        return rope.scaling
    own = file.real(f"{architecture}.rope.scaling.attn_factor", 1.0)
    return replace(rope.scaling, attention_factor=own)


def _query_scaling(file: GgufFile, architecture: str, rope: RopeSpec) -> QueryScaling | None:
    """Return the growth of queries with the position, or None."""
    strength = file.real(f"{architecture}.attention.temperature_scale", 0.0)
    if not strength:
        return None
    original = 0
    if isinstance(rope.scaling, YarnScaling):
        original = rope.scaling.original_context
    key = f"{architecture}.attention.temperature_length"
    period = file.integer(key, original)
    if not 0 <= strength < 100 or period < 1:
        raise ModelError(
            f"{file.path}: {architecture}.attention.temperature_scale {strength} with a length of"
            f" {period} is not supported"
        )
    return QueryScaling(strength, period)


def _log_multiplier(file: GgufFile, architecture: str) -> float:
    """Return the factor of log(YaRN's factor) in the growth of scores: `mscale_all_dim` / 10."""
    return file.real(f"{architecture}.rope.scaling.yarn_log_multiplier", 0.0)


def gguf_latent_keys(spec: DecoderSpec) -> Keys:
    """Return the keys that `gguf_latent_spec` reads."""
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    keys: dict[str, Any] = {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": mixer.kv_rank,
        "attention.key_length": mixer.kv_rank + mixer.rotated_dim,
        "attention.value_length": mixer.kv_rank,
        "attention.key_length_mla": mixer.query_dim,
        "attention.value_length_mla": mixer.value_dim,
    }
    if mixer.q_rank:
        keys["attention.q_lora_rank"] = mixer.q_rank
    own = spec.layers[0].attention.query_scaling
    if own is not None:
        keys["attention.temperature_scale"] = float(own.strength)
        keys["attention.temperature_length"] = own.period
    scaling, growth = spec.rope.scaling, math.sqrt(mixer.scale * math.sqrt(mixer.query_dim))
    if isinstance(scaling, YarnScaling) and scaling.factor > 1 and not math.isclose(growth, 1.0):
        further = growth / scaling.attention_factor - 1
        keys["rope.scaling.yarn_log_multiplier"] = further / math.log(scaling.factor)
        keys["rope.scaling.attn_factor"] = float(scaling.attention_factor)
    return keys
