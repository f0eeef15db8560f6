"""LFM2 and LFM2.5: gated short convolutions, and attention with norms of heads in some layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_keys import Keys, kv_heads_of_each
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_experts import HfExpertsConfig
from penstock.models.configuration.hybrid_layers import (
    check_count,
    gguf_per_layer,
    layer_kinds,
)
from penstock.models.decoder.mixers.short_conv import ShortConvSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, HF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile

_KINDS: Final = {"conv": "conv", "full_attention": "attention"}


class ConvConfig(HfExpertsConfig):
    """The keys of config.json that LFM2 and its mixtures of experts read, with the defaults of
    transformers' Lfm2Config. `tie_embedding`: an older name of `tie_word_embeddings`."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 128_000
    norm_eps: float = 1e-5
    rope_theta: float | None = 1e6
    tie_word_embeddings: bool | None = True
    tie_embedding: bool | None = None
    conv_bias: bool = False
    conv_L_cache: int = 3
    full_attn_idxs: list[int] | None = None


class Config(ConvConfig, kw_only=True):
    """The keys of config.json, with the defaults of transformers' Lfm2Config. `block_ff_dim`: an
    older name of `intermediate_size`."""

    intermediate_size: int = 12_288
    block_ff_dim: int | None = None
    block_multiple_of: int = 256
    block_ffn_dim_multiplier: float | None = 1.0
    block_auto_adjust_ff_dim: bool = True


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    width = config.block_ff_dim or config.intermediate_size
    if config.block_auto_adjust_ff_dim:
        width = _adjusted(width, config.block_ffn_dim_multiplier, config.block_multiple_of)
    return conv_decoder(msgspec.structs.replace(config, intermediate_size=width), where)


def _adjusted(width: int, multiplier: float | None, multiple: int) -> int:
    """Return two thirds of `width` times `multiplier`, rounded up to a multiple."""
    width = int(2 * width / 3)
    if multiplier is None:
        return width
    return -(-int(multiplier * width) // max(multiple, 1)) * multiple


def conv_decoder(config: ConvConfig, where: str) -> DecoderSpec:
    """Return the spec of a dense hybrid of short convolutions and attention. Raises ModelError that
    starts with `where` and names the key."""
    conv = ShortConvSpec(config.hidden_size, config.conv_L_cache, config.conv_bias)
    kinds = _kinds(config, where)
    layers = tuple(LayerSpec(mixer=conv) if kind == "conv" else LayerSpec() for kind in kinds)
    tied = config.tie_word_embeddings if config.tie_embedding is None else config.tie_embedding
    llama = msgspec.structs.replace(
        config, rms_norm_eps=config.norm_eps, tie_word_embeddings=tied, hidden_act="silu"
    )
    return replace(
        decoder_spec(llama, where, layers), qk_norm=True, qkv_bias=False, output_bias=False
    )


def _kinds(config: ConvConfig, where: str) -> list[str]:
    layers = config.num_hidden_layers
    check_count(layers, where, "num_hidden_layers")
    if config.layer_types is not None:
        return layer_kinds(config.layer_types, layers, _KINDS, where, "layer_types")
    attends = config.full_attn_idxs
    return ["attention" if attends is None or i in attends else "conv" for i in range(layers)]


def gguf_spec(file: GgufFile, family_keys: frozenset[str] = frozenset()) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. `family_keys`: keys that the caller reads."""
    architecture = file.text("general.architecture")
    plain = gguf_decoder_spec(file, family_keys)
    count = len(plain.layers)
    taps = file.integer(f"{architecture}.shortconv.l_cache")
    conv = ShortConvSpec(plain.hidden_size, taps, form="gguf")
    heads = gguf_per_layer(file, f"{architecture}.attention.head_count_kv", count) or [1] * count
    layers = tuple(
        replace(layer, mixer=None if own else conv)
        for layer, own in zip(plain.layers, heads, strict=True)
    )
    return replace(plain, layers=layers, qk_norm=True, qkv_bias=False, output_bias=False)


def gguf_keys(spec: DecoderSpec) -> Keys:
    """Return the keys that `gguf_spec` reads."""
    convs = (layer.mixer for layer in spec.layers if isinstance(layer.mixer, ShortConvSpec))
    conv = next(convs, None)
    taps = {} if conv is None else {"shortconv.l_cache": conv.taps}
    return {**kv_heads_of_each(spec), **taps}


MIXER_NAMES: Final = {
    "into": "conv.in_proj.weight",
    "into_bias": "conv.in_proj.bias",
    "conv": "conv.conv.weight",
    "conv_bias": "conv.conv.bias",
    "out": "conv.out_proj.weight",
    "out_bias": "conv.out_proj.bias",
}
NAMES = replace(
    HF_NAMES,
    final_norm="model.embedding_norm",
    attention_norm="operator_norm",
    output="self_attn.out_proj",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    mlp_norm="ffn_norm",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    mixer=MIXER_NAMES,
)
GGUF_CONV_NAMES = replace(
    GGUF_NAMES,
    final_norm="token_embd_norm",
    mixer={
        "into": "shortconv.in_proj.weight",
        "conv": "shortconv.conv.weight",
        "out": "shortconv.out_proj.weight",
    },
)
FAMILY = Family(
    hf=HfDecoder("lfm2", "Lfm2ForCausalLM", Config, spec, NAMES, is_reranker=False),
    gguf=GgufDecoder("lfm2", gguf_spec, GGUF_CONV_NAMES, keys=gguf_keys),
)
