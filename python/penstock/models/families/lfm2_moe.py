"""LFM2 with mixtures of experts after the first layers. Shares are sigmoids, and the router has a
bias for the choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.base.errors import ModelError
from penstock.kernels.routing import Routing
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_experts import EXPERT_KEYS, gguf_mixtures
from penstock.models.configuration.hf_experts import expert_counts
from penstock.models.decoder.experts_spec import ExpertsSpec, check_choice
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.families import lfm2
from penstock.quant.gguf.gguf_file import GgufFile

_EPSILON: Final = 1e-6
"""Is added to the sum by which shares are divided."""


class Config(lfm2.ConvConfig):
    """The keys of config.json, with the defaults of transformers' Lfm2MoeConfig."""

    num_experts: int | None = 32
    num_experts_per_tok: int | None = 4
    moe_intermediate_size: int = 1792
    num_dense_layers: int = 2
    use_expert_bias: bool = True
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    plain = lfm2.conv_decoder(config, where)
    count, per_token = expert_counts(config, where)
    check_choice(where, per_token)
    if config.num_dense_layers < 0:
        raise ModelError(f"{where}: num_dense_layers {config.num_dense_layers} is negative")
    experts = ExpertsSpec(
        count,
        Routing(
            per_token,
            "sigmoid",
            renormalize=config.norm_topk_prob,
            epsilon=_EPSILON,
            scale=config.routed_scaling_factor,
        ),
        config.moe_intermediate_size,
        correction_bias=config.use_expert_bias,
    )
    dense, sparse = (
        plain.layers[: config.num_dense_layers],
        plain.layers[config.num_dense_layers :],
    )
    return replace(plain, layers=(*dense, *(replace(layer, experts=experts) for layer in sparse)))


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    plain = gguf_mixtures(file, lfm2.gguf_spec(file, EXPERT_KEYS), "sigmoid")

    def exact(experts: ExpertsSpec | None) -> ExpertsSpec | None:
        if experts is None:
            return None
        return replace(experts, routing=replace(experts.routing, epsilon=_EPSILON))

    layers = tuple(replace(layer, experts=exact(layer.experts)) for layer in plain.layers)
    return replace(plain, layers=layers)


NAMES = replace(
    lfm2.NAMES,
    router="feed_forward.gate",
    router_bias="feed_forward.expert_bias",
    expert_gate="feed_forward.experts.{}.w1",
    expert_up="feed_forward.experts.{}.w3",
    expert_down="feed_forward.experts.{}.w2",
)
FAMILY = Family(
    hf=HfDecoder("lfm2_moe", "Lfm2MoeForCausalLM", Config, spec, NAMES, is_reranker=False),
    gguf=GgufDecoder("lfm2moe", gguf_spec, lfm2.GGUF_CONV_NAMES, keys=lfm2.gguf_keys),
)
