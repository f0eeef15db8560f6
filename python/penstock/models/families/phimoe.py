"""Phi-3.5-MoE: Mixtral with LayerNorms, biases, LongRoPE and a SparseMixer router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from penstock.base.errors import ModelError
from penstock.kernels.routing import Routing
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_keys import Keys
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_experts import HfExpertsConfig, expert_counts
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.families import mixtral
from penstock.quant.gguf.gguf_file import GgufFile

JITTER = 0.01
"""The jitter of published models, for which GGUF has no key."""


class Config(HfExpertsConfig):
    """The keys of config.json, with the defaults of transformers' PhimoeConfig."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    rope_theta: float | None = 1e6
    sliding_window: int | None = None
    num_local_experts: int | None = 16
    num_experts_per_tok: int | None = 2
    router_jitter_noise: float = JITTER
    lm_head_bias: bool = False


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    count, per_token = expert_counts(config, where)
    if not 0 <= config.router_jitter_noise < 1:
        raise ModelError(
            f"{where}: router_jitter_noise {config.router_jitter_noise} is not in 0..1"
        )
    routing = _routing(per_token, config.router_jitter_noise, where, "num_experts_per_tok")
    experts = ExpertsSpec(count, routing, config.intermediate_size)
    layers = uniform_layers(config, where, config.sliding_window)
    plain = decoder_spec(
        _with_one_amplitude(config, where),
        where,
        tuple(replace(layer, experts=experts) for layer in layers),
    )
    return replace(plain, norm_kind="layer", norm_bias=True, head_bias=config.lm_head_bias)


def _routing(per_token: int, jitter: float, where: str, key: str) -> Routing:
    if per_token != 2:
        raise ModelError(f"{where}: {key} {per_token} is not supported, only 2")
    return Routing(per_token, "sparsemixer", jitter=jitter)


def _with_one_amplitude(config: Config, where: str) -> Config:
    """Return the config with the factor of LongRoPE's cosines and sines under the name that other
    models use. Raises ModelError if it differs between short and long contexts."""
    given: Mapping[str, Any] = config.rope_scaling or config.rope_parameters or {}
    short, long = (given.get(f"{length}_mscale") for length in ("short", "long"))
    if short is None and long is None:
        return config
    if short != long:
        raise ModelError(
            f"{where}: rope scaling: short_mscale {short} other than long_mscale {long} is not"
            " supported"
        )
    renamed = {**given, "attention_factor": short}
    if config.rope_scaling:
        return msgspec.structs.replace(config, rope_scaling=renamed)
    return msgspec.structs.replace(config, rope_parameters=renamed)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    plain = gguf_decoder_spec(file)
    experts = plain.layers[0].experts
    if experts is None:
        raise ModelError(f"{file.path}: phimoe.expert_count is missing")
    routing = _routing(experts.per_token, JITTER, str(file.path), "phimoe.expert_used_count")
    experts = replace(experts, routing=routing)
    return replace(
        plain,
        layers=tuple(replace(layer, experts=experts) for layer in plain.layers),
        norm_kind="layer",
        norm_bias=True,
        head_bias="output.bias" in file.tensors,
    )


def gguf_keys(spec: DecoderSpec) -> Keys:
    """Return the key of the eps, which llama.cpp expects of RMSNorms here too."""
    return {"attention.layer_norm_rms_epsilon": float(spec.norm_eps)}


FAMILY = Family(
    hf=HfDecoder(
        "phimoe",
        "PhimoeForCausalLM",
        Config,
        spec,
        mixtral.NAMES,
        aliases=("PhiMoEForCausalLM",),
    ),
    gguf=GgufDecoder("phimoe", gguf_spec, keys=gguf_keys),
)
