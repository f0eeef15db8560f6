"""Qwen3.5 with a mixture of experts and a gated shared expert in every layer. Its vision tower and
media are those of Qwen3.5."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder, MediaFamily
from penstock.models.configuration.gated_delta import (
    DeltaConfig,
    gguf_delta_keys,
    with_mixtures,
)
from penstock.models.configuration.gguf_experts import gguf_mixtures
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.families import qwen3_5
from penstock.models.families.qwen2_moe import NAMES as SHARED_NAMES
from penstock.quant.gguf.gguf_file import GgufFile


class Config(DeltaConfig, kw_only=True):
    """The keys of config.json, with the defaults of transformers' Qwen3_5MoeTextConfig."""

    num_key_value_heads: int | None = 2
    intermediate_size: int = 0
    num_experts: int | None = 256
    num_experts_per_tok: int | None = 8
    moe_intermediate_size: int | None = 512
    shared_expert_intermediate_size: int | None = 512
    norm_topk_prob: bool = True


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. No layer is dense."""
    if config.moe_intermediate_size is None:
        raise ModelError(f"{where}: moe_intermediate_size is missing")
    dense = msgspec.structs.replace(config, intermediate_size=config.moe_intermediate_size)
    return with_mixtures(qwen3_5.spec(dense, where), config, where)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    return gguf_mixtures(file, qwen3_5.gguf_spec(file), "softmax")


NAMES = replace(
    SHARED_NAMES,
    mixer=qwen3_5.NAMES.mixer,
    ignored=qwen3_5.NAMES.ignored,
    mtp=qwen3_5.NAMES.mtp,
)
FAMILY = Family(
    hf=HfDecoder(
        "qwen3_5_moe",
        "Qwen3_5MoeForCausalLM",
        Config,
        spec,
        NAMES,
        model_type="qwen3_5_moe_text",
        headless="Qwen3_5MoeTextModel",
        is_reranker=False,
    ),
    gguf=GgufDecoder("qwen35moe", gguf_spec, qwen3_5.GGUF_DELTA_NAMES, keys=gguf_delta_keys),
    media=MediaFamily("Qwen3_5MoeForConditionalGeneration", qwen3_5.read_folder),
)
