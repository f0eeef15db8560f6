"""Reads the keys of config.json by which DeepSeek and its relatives describe their mixtures of
experts: shared experts, groups of experts, and dense layers before the mixtures."""

from __future__ import annotations

from penstock.base.errors import ModelError
from penstock.kernels.routing import Routing, Scoring
from penstock.models.configuration.hf_experts import HfExpertsConfig, expert_counts
from penstock.models.configuration.hf_layers import num_layers
from penstock.models.decoder.experts_spec import ExpertsSpec, check_choice


class HfSharedExpertsConfig(HfExpertsConfig):
    """The keys of a mixture with shared experts. `n_group` and `topk_group`: the groups into which
    experts are divided, and those from which a token chooses. `moe_layer_freq`: only layers with
    a multiple of this index are mixtures."""

    moe_intermediate_size: int | None = None
    n_shared_experts: int | None = None
    n_group: int | None = None
    topk_group: int | None = None
    norm_topk_prob: bool | None = None
    routed_scaling_factor: float = 1.0
    scoring_func: str | None = None
    first_k_dense_replace: int | None = 0
    moe_layer_freq: int | None = None
    num_nextn_predict_layers: int | None = None


def shared_mixture(
    config: HfSharedExpertsConfig, where: str, scoring: Scoring, best_of_group: int
) -> ExpertsSpec:
    """Return the mixture of experts of all layers that have one. `scoring`, `best_of_group`: see
    `Routing`; a router of sigmoids has correction biases. Raises ModelError naming the key at
    fault."""
    count, per_token = expert_counts(config, where)
    if config.moe_intermediate_size is None:
        raise ModelError(f"{where}: moe_intermediate_size is missing")
    if config.scoring_func not in (None, scoring):
        raise ModelError(
            f"{where}: scoring_func {config.scoring_func!r} is not supported, only {scoring!r}"
        )
    shared = config.n_shared_experts or 0
    if shared < 0:
        raise ModelError(f"{where}: n_shared_experts {shared} is negative")
    groups, chosen = _groups(config, where, count)
    check_choice(where, per_token, groups, chosen)
    return ExpertsSpec(
        count,
        Routing(
            per_token,
            scoring,
            renormalize=bool(config.norm_topk_prob),
            scale=config.routed_scaling_factor,
            groups=groups,
            groups_per_token=chosen,
            best_of_group=best_of_group,
        ),
        config.moe_intermediate_size,
        correction_bias=scoring == "sigmoid",
        shared_size=shared * config.moe_intermediate_size,
    )


def mixture_layers(
    config: HfSharedExpertsConfig, where: str, experts: ExpertsSpec
) -> list[ExpertsSpec | None]:
    """Return the mixture of each layer, None for a dense layer. Raises ModelError naming the key at
    fault."""
    first, step = config.first_k_dense_replace or 0, config.moe_layer_freq
    if first < 0:
        raise ModelError(f"{where}: first_k_dense_replace {first} is negative")
    if step is not None and step < 1:
        raise ModelError(f"{where}: moe_layer_freq {step} is not positive")
    return [
        experts if layer >= first and layer % (step or 1) == 0 else None
        for layer in range(num_layers(config, where))
    ]


def predicting_layers(config: HfSharedExpertsConfig, where: str) -> int:
    """Return the number of layers after the last that predict further tokens. Raises ModelError if
    `num_nextn_predict_layers` is negative."""
    layers = config.num_nextn_predict_layers or 0
    if layers < 0:
        raise ModelError(f"{where}: num_nextn_predict_layers {layers} is negative")
    return layers


def _groups(config: HfSharedExpertsConfig, where: str, count: int) -> tuple[int, int]:
    """Return the number of groups of experts, and of the groups from which a token chooses."""
    groups = 1 if config.n_group is None else config.n_group
    chosen = groups if config.topk_group is None else config.topk_group
    if groups < 1 or count % groups:
        raise ModelError(f"{where}: n_group {groups} does not divide {count} experts")
    if not 1 <= chosen <= groups:
        raise ModelError(f"{where}: topk_group {chosen} is not in 1..{groups}")
    return groups, chosen
