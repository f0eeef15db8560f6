"""Qwen3-Next and Qwen3-Coder-Next: gated delta nets, attention with a gate in every fourth layer,
and mixtures of experts with a gated shared expert."""

from __future__ import annotations

from dataclasses import replace

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gated_delta import (
    DeltaConfig,
    delta_decoder,
    gguf_delta_decoder,
    gguf_delta_keys,
    with_mixtures,
)
from penstock.models.configuration.gguf_experts import gguf_mixtures
from penstock.models.decoder.mixers.gated_delta import GATES_BY_GROUP, DeltaLayout
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.families import qwen3_5
from penstock.models.families.qwen2_moe import NAMES as SHARED_NAMES
from penstock.quant.gguf.gguf_file import GgufFile


class Config(DeltaConfig):
    """The keys of config.json, with the defaults of transformers' Qwen3NextConfig."""

    num_key_value_heads: int | None = 2
    num_experts: int | None = 512
    num_experts_per_tok: int | None = 10
    moe_intermediate_size: int | None = 512
    shared_expert_intermediate_size: int | None = 512
    norm_topk_prob: bool = True


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    plain = delta_decoder(config, where, DeltaLayout("by group"))
    return plain if config.num_experts == 0 else with_mixtures(plain, config, where)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. In older files, the projection of the gates is part
    of another matrix."""
    older = any(name.endswith(".ssm_in.weight") for name in file.tensors)
    layout = DeltaLayout("by group", form="gguf") if older else GATES_BY_GROUP
    return gguf_mixtures(file, gguf_delta_decoder(file, layout), "softmax")


NAMES = replace(
    SHARED_NAMES,
    mixer={
        **qwen3_5.NAMES.mixer,
        "qkvz": "linear_attn.in_proj_qkvz.weight",
        "ba": "linear_attn.in_proj_ba.weight",
    },
    ignored=qwen3_5.NAMES.ignored,
    mtp=qwen3_5.NAMES.mtp,
)
GGUF_NEXT_NAMES = replace(
    qwen3_5.GGUF_DELTA_NAMES,
    mixer={
        **qwen3_5.GGUF_DELTA_NAMES.mixer,
        "qkvz": "ssm_in.weight",
        "ba": "ssm_ba.weight",
    },
)
FAMILY = Family(
    hf=HfDecoder("qwen3_next", "Qwen3NextForCausalLM", Config, spec, NAMES, is_reranker=False),
    gguf=GgufDecoder("qwen3next", gguf_spec, GGUF_NEXT_NAMES, keys=gguf_delta_keys),
)
