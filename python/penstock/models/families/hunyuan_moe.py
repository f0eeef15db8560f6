"""Hunyuan-A13B: Hunyuan with a mixture of experts in every layer, beside a shared feed-forward of
the same width."""

from __future__ import annotations

from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.kernels.routing import Routing
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_experts import EXPERT_KEYS, gguf_mixtures
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.configuration.ntk_alpha import with_stretched_base
from penstock.models.decoder.experts_spec import ExpertsSpec, check_choice
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.families import hunyuan_dense
from penstock.quant.gguf.gguf_file import GgufFile

PerLayer = int | list[int]


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' HunYuanMoEV1Config. A list has
    one entry per layer."""

    rms_norm_eps: float = 1e-5
    num_experts: int | list[int] = 1
    moe_topk: int | list[int] = 1
    moe_intermediate_size: int | list[int] | None = None
    num_shared_expert: int | list[int] | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. Raises ModelError naming a key whose entries
    differ between layers, or a size of experts other than `intermediate_size`."""
    count = _same(config.num_experts, where, "num_experts")
    per_token = _same(config.moe_topk, where, "moe_topk")
    size = config.intermediate_size
    for name, given, only in (
        ("moe_intermediate_size", config.moe_intermediate_size, size),
        ("num_shared_expert", config.num_shared_expert, 1),
    ):
        if given is not None and _same(given, where, name) != only:
            raise ModelError(f"{where}: {name} {given} is not supported, only {only}")
    check_choice(where, per_token)
    experts = ExpertsSpec(count, Routing(per_token, renormalize=True), size, shared_size=size)
    layers = tuple(replace(layer, experts=experts) for layer in uniform_layers(config, where))
    plain = decoder_spec(with_stretched_base(config, where), where, layers)
    return hunyuan_dense.with_norms(replace(plain, mlp_bias=False))


def _same(given: PerLayer, where: str, name: str) -> int:
    """Return the one value of all layers."""
    values = set(given) if isinstance(given, list) else {given}
    if len(values) != 1:
        raise ModelError(f"{where}: {name} {given} is not supported, only one value")
    return values.pop()


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file, whose rotary base is already stretched."""
    return hunyuan_dense.with_norms(
        gguf_mixtures(file, gguf_decoder_spec(file, EXPERT_KEYS), "softmax")
    )


NAMES = replace(
    hunyuan_dense.NAMES,
    router="mlp.gate.wg",
    shared_gate="mlp.shared_mlp.gate_proj",
    shared_up="mlp.shared_mlp.up_proj",
    shared_down="mlp.shared_mlp.down_proj",
)
FAMILY = Family(
    hf=HfDecoder(
        "hunyuan_moe",
        "HunYuanMoEV1ForCausalLM",
        Config,
        spec,
        NAMES,
        model_type="hunyuan_v1_moe",
    ),
    gguf=GgufDecoder("hunyuan-moe", gguf_spec),
)
