"""Which layers of a model are mixtures of experts, from its config or its GGUF metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from penstock.base.errors import ModelError
from penstock.models.decoder.spec import ExpertsSpec
from penstock.models.families.hf_config import HfConfig
from penstock.models.families.unsupported_keys import GGUF_EXPERTS_NEUTRAL, refuse_unsupported
from penstock.quant.gguf.gguf_file import GgufFile

Mixtures: TypeAlias = tuple[ExpertsSpec | None, ...]
MoeKind = Literal["qwen3", "mixtral", "gpt_oss"]
"""Whose keys say what the experts of a model are."""


def hf_moe_layers(config: HfConfig, kind: MoeKind, where: str) -> Mixtures:
    """Of each layer of a Hugging Face model. Raises ModelError naming a key that is missing."""
    layers = config.num_hidden_layers
    count = config.num_experts or config.num_local_experts
    if count is None or config.num_experts_per_tok is None:
        missing = "num_experts" if count is None else "num_experts_per_tok"
        raise ModelError(f"{where}: {missing} is missing")
    if kind != "qwen3":
        all_alike = ExpertsSpec(
            count, config.num_experts_per_tok, config.intermediate_size, renormalize=True
        )
        return (gpt_oss_experts(all_alike) if kind == "gpt_oss" else all_alike,) * layers
    if config.moe_intermediate_size is None:
        raise ModelError(f"{where}: moe_intermediate_size is missing")
    step = config.decoder_sparse_step
    if step < 1:
        raise ModelError(f"{where}: decoder_sparse_step {step} is not positive")
    experts = ExpertsSpec(
        count, config.num_experts_per_tok, config.moe_intermediate_size, config.norm_topk_prob
    )
    dense = frozenset(config.mlp_only_layers or ())
    return tuple(
        None if layer in dense or (layer + 1) % step else experts for layer in range(layers)
    )


def gpt_oss_experts(plain: ExpertsSpec) -> ExpertsSpec:
    """What its files leave to the reader's knowledge."""
    return replace(plain, renormalize=True, biased=True, activation="swiglu_oai")


def gguf_experts(file: GgufFile, architecture: str) -> ExpertsSpec | None:
    """Those of all layers; None in a model without. Raises ModelError naming a key that asks for
    what is not supported."""
    count = file.integer(f"{architecture}.expert_count", 0)
    if not count:
        return None
    where = str(file.path)
    refuse_unsupported(where, file.metadata, GGUF_EXPERTS_NEUTRAL, f"{architecture}.")
    inner = f"{architecture}.feed_forward_length"
    own = f"{architecture}.expert_feed_forward_length"
    renormalize = file.boolean(f"{architecture}.expert_weights_norm")
    return ExpertsSpec(
        count=count,
        per_token=file.integer(f"{architecture}.expert_used_count"),
        ff=file.integer(own if own in file.metadata else inner),
        renormalize=renormalize is not False,  # older files leave it to the reader's knowledge
    )
