"""Reads the keys of config.json that describe a mixture of experts."""

from __future__ import annotations

from penstock.base.errors import ModelError
from penstock.kernels.routing import Routing
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_layers import num_layers
from penstock.models.decoder.experts_spec import ExpertsSpec, check_choice


class HfExpertsConfig(HfConfig):
    """The keys that every mixture-of-experts model reads. `num_local_experts`, `n_routed_experts`:
    the names of Mixtral and DeepSeek for `num_experts`."""

    num_experts: int | None = None
    num_local_experts: int | None = None
    n_routed_experts: int | None = None
    num_experts_per_tok: int | None = None


class QwenExpertsConfig(HfExpertsConfig):
    """The keys of Qwen's mixtures of experts. `decoder_sparse_step`: only the last layer of each
    group of this size is a mixture. `mlp_only_layers`: further dense layers."""

    moe_intermediate_size: int | None = None
    shared_expert_intermediate_size: int | None = None
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None


def expert_counts(config: HfExpertsConfig, where: str) -> tuple[int, int]:
    """Return the number of experts per layer and the number of experts per token. Raises ModelError
    naming a key that is missing."""
    count = config.num_experts or config.num_local_experts or config.n_routed_experts
    if count is None or config.num_experts_per_tok is None:
        missing = "num_experts" if count is None else "num_experts_per_tok"
        raise ModelError(f"{where}: {missing} is missing")
    return count, config.num_experts_per_tok


def softmax_choice(config: HfExpertsConfig, where: str, renormalize: bool) -> tuple[int, Routing]:
    """Return the number of experts per layer, and the rule of a router without groups whose shares
    are softmax probabilities. `renormalize`: see `Routing`. Raises ModelError naming the key at
    fault."""
    count, per_token = expert_counts(config, where)
    check_choice(where, per_token)
    return count, Routing(per_token, renormalize=renormalize)


def qwen_mixtures(config: QwenExpertsConfig, where: str) -> list[ExpertsSpec | None]:
    """Return the mixture of experts of each layer, None for a dense layer. A shared expert has a
    gate. Raises ModelError naming the key at fault."""
    count, routing = softmax_choice(config, where, config.norm_topk_prob)
    if config.moe_intermediate_size is None:
        raise ModelError(f"{where}: moe_intermediate_size is missing")
    step, shared = config.decoder_sparse_step, config.shared_expert_intermediate_size or 0
    if step < 1:
        raise ModelError(f"{where}: decoder_sparse_step {step} is not positive")
    if shared < 0:
        raise ModelError(f"{where}: shared_expert_intermediate_size {shared} is negative")
    experts = ExpertsSpec(
        count,
        routing,
        config.moe_intermediate_size,
        shared_size=shared,
        shared_gated=shared > 0,
    )
    dense = frozenset(config.mlp_only_layers or ())
    return [
        None if layer in dense or (layer + 1) % step else experts
        for layer in range(num_layers(config, where))
    ]
