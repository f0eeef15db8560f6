"""Falcon-H1: attention and Mamba2 side by side in every layer, with fixed factors on embeddings,
projections and logits (muP)."""

from __future__ import annotations

from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.configuration.mamba import (
    GGUF_MAMBA_NAMES,
    MambaConfig,
    gguf_mamba,
    mamba_names,
    mamba_of,
)
from penstock.models.decoder.mixers.mamba2 import PLAIN, GatedNorm, Mamba2Spec
from penstock.models.decoder.mixers.parallel import ParallelSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, HF_NAMES
from penstock.quant.gguf.gguf_file import GgufFile


class Config(MambaConfig):
    """The keys of config.json, with the defaults of transformers' FalconH1Config."""

    num_key_value_heads: int | None = 8
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 8192
    mamba_d_ssm: int | None = 1024
    mamba_norm_before_gate: bool = True
    mamba_rms_norm: bool = False
    projectors_bias: bool = False
    lm_head_multiplier: float = 1.0
    embedding_multiplier: float = 1.0
    mlp_multipliers: list[float] | None = None
    key_multiplier: float = 1.0
    attention_out_multiplier: float = 1.0
    attention_in_multiplier: float = 1.0
    ssm_multipliers: list[float] | None = None
    ssm_in_multiplier: float = 1.0
    ssm_out_multiplier: float = 1.0


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    gate, down = _factors(config.mlp_multipliers, 2, "mlp_multipliers", where)
    plain = decoder_spec(config, where, uniform_layers(config, where))
    mixer = ParallelSpec(
        plain.num_heads,
        plain.num_kv_heads,
        plain.head_dim,
        _mamba(config, where),
        config.attention_bias,
        config.attention_in_multiplier,
        config.attention_out_multiplier,
    )
    return replace(
        plain,
        layers=(LayerSpec(mixer=mixer),) * len(plain.layers),
        attention_scale=plain.head_dim**-0.5 * config.key_multiplier,
        embedding_scale=config.embedding_multiplier,
        logit_scale=config.lm_head_multiplier,
        gate_factor=gate,
        down_factor=down,
    )


def _mamba(config: Config, where: str) -> Mamba2Spec:
    z, x, b, c, dt = (
        factor * config.ssm_in_multiplier
        for factor in _factors(config.ssm_multipliers, 5, "ssm_multipliers", where)
    )
    norm: GatedNorm = "norm first" if config.mamba_norm_before_gate else "gate first"
    if not config.mamba_rms_norm:
        norm = "gate"
    plain = mamba_of(config, where, config.mamba_d_ssm)
    if config.mamba_proj_bias and config.ssm_in_multiplier != 1.0:
        raise ModelError(f"{where}: ssm_in_multiplier is not supported with mamba_proj_bias")
    return replace(
        plain,
        out_bias=config.projectors_bias,
        norm=norm,
        factors=(z, x, b, c, dt),
        out_factor=config.ssm_out_multiplier,
    )


def _factors(given: list[float] | None, count: int, key: str, where: str) -> list[float]:
    factors = list(PLAIN[:count]) if given is None else given
    if len(factors) != count:
        raise ModelError(f"{where}: {key} must have {count} numbers, not {len(factors)}")
    return factors


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. The converter has already multiplied the weights by
    the factors."""
    plain = gguf_decoder_spec(file)
    mamba = gguf_mamba(file, plain.norm_eps)
    mixer = ParallelSpec(plain.num_heads, plain.num_kv_heads, plain.head_dim, mamba, plain.qkv_bias)
    layers = (LayerSpec(mixer=mixer),) * len(plain.layers)
    return replace(plain, layers=layers, qk_norm=False, merged_factors=True)


NAMES = replace(
    HF_NAMES,
    final_norm="model.final_layernorm",
    mlp_norm="pre_ff_layernorm",
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    mixer={
        **mamba_names("mamba."),
        **{
            role + bias: f"self_attn.{projection}_proj.{kind}"
            for role, projection in (("q", "q"), ("k", "k"), ("v", "v"), ("attention_out", "o"))
            for bias, kind in (("", "weight"), ("_bias", "bias"))
        },
    },
)
GGUF_PARALLEL_NAMES = replace(
    GGUF_NAMES,
    bare_norm="ffn_norm",
    mixer={
        **GGUF_MAMBA_NAMES,
        **{
            role + bias: f"attn_{projection}.{kind}"
            for role, projection in (
                ("q", "q"),
                ("k", "k"),
                ("v", "v"),
                ("attention_out", "output"),
            )
            for bias, kind in (("", "weight"), ("_bias", "bias"))
        },
    },
)
FAMILY = Family(
    hf=HfDecoder("falcon_h1", "FalconH1ForCausalLM", Config, spec, NAMES, is_reranker=False),
    gguf=GgufDecoder("falcon-h1", gguf_spec, GGUF_PARALLEL_NAMES, is_written=False),
)
