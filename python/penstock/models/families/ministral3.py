"""Ministral 3: Mistral with YaRN, and queries that grow with the logarithm of their position beyond
the context before scaling. The GGUF architecture is `mistral3`, also of Mistral Small 3."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_keys import Keys
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.block_specs import LayerAttention, QueryScaling
from penstock.models.decoder.rope_spec import YarnScaling
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile

_SCALE_KEY = "attention.temperature_scale"
_LOG_KEY = "rope.scaling.yarn_log_multiplier"


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' Ministral3Config."""

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 262_144
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. A config without rotary keys has those of
    the published models."""
    if config.rope_parameters is None and config.rope_scaling is None:
        config = msgspec.structs.replace(config, rope_parameters=_published(config))
    layers = uniform_layers(config, where, config.sliding_window)
    plain = decoder_spec(config, where, layers)
    plain = replace(plain, qkv_bias=False, output_bias=False, mlp_bias=False)
    given = config.rope_scaling or config.rope_parameters or {}
    return _with_scaled_queries(plain, given.get("llama_4_scaling_beta"), where)


def _published(config: Config) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "rope_theta": config.rope_theta or 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. With `yarn_log_multiplier`, the growth of cosines and
    sines with YaRN's factor is divided by the growth that this multiplier describes."""
    plain = gguf_decoder_spec(file, family_keys=frozenset({_SCALE_KEY, _LOG_KEY}))
    multiplier = file.real(f"mistral3.{_LOG_KEY}", 0.0)
    scaling = plain.rope.scaling
    if isinstance(scaling, YarnScaling) and multiplier:
        growth = 1 + 0.1 * multiplier * math.log(max(scaling.factor, 1.0))
        scaling = replace(scaling, attention_factor=scaling.attention_factor / growth)
        plain = replace(plain, rope=replace(plain.rope, scaling=scaling))
    return _with_scaled_queries(plain, file.real(f"mistral3.{_SCALE_KEY}", 0.0), str(file.path))


def gguf_keys(spec: DecoderSpec) -> Keys:
    """Return the key of the growth of queries."""
    own = spec.layers[0].attention.query_scaling
    return {} if own is None else {_SCALE_KEY: float(own.strength)}


def _with_scaled_queries(plain: DecoderSpec, strength: Any, where: str) -> DecoderSpec:
    """Return `plain` with queries that grow from the original context of YaRN on. Raises ModelError
    that starts with `where` for a faulty strength."""
    if not strength:
        return plain
    scaling = plain.rope.scaling
    positive = isinstance(strength, int | float) and 0 < strength < math.inf
    if not positive or not isinstance(scaling, YarnScaling):
        raise ModelError(
            f"{where}: llama_4_scaling_beta {strength} is supported only as a positive number and"
            " with yarn"
        )
    own = LayerAttention(query_scaling=QueryScaling(strength, scaling.original_context))
    return replace(plain, layers=tuple(replace(one, attention=own) for one in plain.layers))


FAMILY = Family(
    hf=HfDecoder("ministral3", "Ministral3ForCausalLM", Config, spec),
    gguf=GgufDecoder("mistral3", gguf_spec, permuted_qk=True, keys=gguf_keys),
)
