"""The op `route_experts`: it chooses experts for each token, and computes their shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.registry import Case, Cost, Op, Tolerance
from penstock.kernels.routing import Routing


def route_experts(
    logits: torch.Tensor,
    routing: Routing,
    bias: torch.Tensor | None = None,
    expert_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers and the shares of the `top_k` chosen experts of each token: `logits: [T,
    E]` -> [T, top_k] int32, [T, top_k].

    Chosen experts are in descending order of their choice scores; see `Routing`.

    `bias`: [E], added to the scores for the choice, not for the shares.
    `expert_scale`: [E], a factor of the share of each expert.
    """
    if routing.scoring == "sparsemixer":
        chosen, shares = _mixed_sparsely(logits, 2 * routing.jitter)
    else:
        scores = logits.sigmoid() if routing.scoring == "sigmoid" else logits.softmax(dim=-1)
        by_score = scores if bias is None else scores + bias
        ranked = _within_groups(logits if bias is None else by_score, by_score, routing)
        order = torch.sort(ranked, dim=-1, descending=True, stable=True).indices
        chosen = order[:, : routing.top_k]
        shares = _shares(logits.gather(1, order), routing)
    shares = shares * routing.scale
    return chosen.int(), shares if expert_scale is None else shares * expert_scale[chosen]


def _shares(ordered: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Return the shares of the first `top_k` columns of the logits `ordered` [T, E]."""
    picked = ordered[:, : routing.top_k]
    if routing.scoring == "softmax":
        weights = torch.softmax(picked if routing.renormalize else ordered, dim=-1)
        return weights[:, : routing.top_k]
    scores = picked.sigmoid()
    if not routing.renormalize:
        return scores
    return scores / (scores.sum(dim=-1, keepdim=True) + routing.epsilon)


def _within_groups(ranked: torch.Tensor, scores: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Return `ranked` [T, E] with -inf for the experts outside a token's best groups. `scores`:
    [T, E], from which the scores of groups are summed."""
    if not routing.limited:
        return ranked
    of_groups = (ranked if routing.best_of_group == 1 else scores).unflatten(
        -1, (routing.groups, -1)
    )
    best = of_groups.topk(min(routing.best_of_group, of_groups.shape[-1]), dim=-1).values.sum(-1)
    order = torch.sort(best, dim=-1, descending=True, stable=True).indices
    outside = torch.ones_like(best, dtype=torch.bool)
    outside.scatter_(1, order[:, : routing.groups_per_token], False)
    return ranked.masked_fill(outside.repeat_interleave(of_groups.shape[-1], 1), float("-inf"))


def _mixed_sparsely(logits: torch.Tensor, most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two experts of each token and their shares, as "sparsemixer" says. `most`: the
    largest relative distance of a logit that counts."""
    left, chosen, shares = logits, [], []
    for _ in range(2):
        best = torch.sort(left, dim=-1, descending=True, stable=True).indices[:, :1]
        highest = left.gather(1, best)
        far = (highest - logits) / torch.maximum(logits.abs(), highest) > most
        weights = left.masked_fill(far, float("-inf")).softmax(dim=-1)
        chosen.append(best)
        shares.append(weights.gather(1, best))
        left = left.scatter(1, best, float("-inf"))
    return torch.cat(chosen, dim=-1), torch.cat(shares, dim=-1)


def _inputs(
    tokens: int,
    count: int,
    routing: Routing,
    num_distinct: int = 0,
    bias: float = 0.0,
    scaled: str = "",
) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes router logits.

    `num_distinct`: number of distinct logits, small enough for ties; 0: any logits.
    `bias`: spread of the biases; 0: no bias.
    `scaled`: not empty: experts have scales.
    """

    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        logits = source.normal(tokens, count) * 3
        if num_distinct:
            logits = source.integers(0, num_distinct, tokens, count).float() / 2
        logits[0, 0] = -1e30  # a share of zero
        offsets = source.normal(count) * bias
        if num_distinct:
            offsets = source.integers(0, 2, count).float() * bias
        return {
            "logits": logits,
            "routing": routing,
            "bias": offsets if bias else None,
            "expert_scale": source.normal(count).exp() if scaled else None,
        }

    return make_inputs


def _softmax(tokens: int, count: int, top_k: int, renormalize: bool, num_distinct: int = 0) -> Case:
    form = "-renormalized" if renormalize else ""
    name = f"T{tokens}-E{count}-top{top_k}{form}{'-ties' if num_distinct else ''}"
    routing = Routing(top_k, renormalize=renormalize)
    return Case(name, "float", _inputs(tokens, count, routing, num_distinct))


def _case(
    name: str,
    tokens: int,
    count: int,
    routing: Routing,
    num_distinct: int = 0,
    bias: float = 0.0,
    scaled: str = "",
) -> Case:
    title = f"{name}-T{tokens}-E{count}-top{routing.top_k}"
    return Case(title, "float", _inputs(tokens, count, routing, num_distinct, bias, scaled))


_V2 = Routing(6, scale=16.0, groups=8, groups_per_token=3, best_of_group=1)
_V3 = Routing(8, "sigmoid", True, scale=2.5, groups=8, groups_per_token=4)
_PHI = Routing(2, "sparsemixer", jitter=0.01)

ROUTE_EXPERTS = Op(
    name="route_experts",
    signature=(
        "logits float32 [T, E]; routing Routing; optional bias float32 [E]; "
        "optional expert_scale float32 [E]; "
        "write chosen int32 [T, top_k]; write shares float32 [T, top_k]"
    ),
    reference=route_experts,
    cases=(
        _softmax(1, 128, 8, True),
        _softmax(5, 8, 2, True),
        _softmax(7, 60, 4, False),
        _softmax(3, 4, 4, True),
        _softmax(4, 33, 6, True, num_distinct=3),
        _softmax(2, 1, 1, False),
        _case("softmax-groups", 9, 160, _V2),
        _case("softmax-groups-of-one", 3, 8, Routing(2, groups=8, groups_per_token=2)),
        _case("softmax-best-two", 5, 24, Routing(3, "softmax", True, groups=4, groups_per_token=2)),
        _case("softmax-ties", 6, 24, Routing(3, groups=4, groups_per_token=2, best_of_group=1), 2),
        _case("softmax-scaled", 4, 33, Routing(4, "softmax", True), scaled="scaled"),
        _case("sigmoid", 4, 16, Routing(1, "sigmoid")),
        _case("sigmoid-bias", 7, 32, Routing(4, "sigmoid", True, 1e-6), bias=0.3),
        _case("sigmoid-bias-scores", 7, 32, Routing(4, "sigmoid", scale=1.5), bias=0.3),
        _case("sigmoid-groups-bias", 9, 256, _V3, bias=0.3),
        _case("sigmoid-ties", 6, 24, Routing(5, "sigmoid", groups=4, groups_per_token=2), 2, 1.0),
        _case("sparsemixer", 9, 16, _PHI),
        _case("sparsemixer-wide", 9, 16, Routing(2, "sparsemixer", jitter=0.2)),
        _case("sparsemixer-ties", 6, 16, _PHI, 3),
    ),
    benchmarks=(
        _softmax(1, 128, 8, True),
        _softmax(512, 128, 8, True),
        _case("deepseek-v3", 1, 256, _V3, bias=0.3),
        _case("deepseek-v3", 512, 256, _V3, bias=0.3),
    ),
    tolerance={"float": Tolerance(1e-6, 1e-5)},
    cost=lambda inputs: Cost(
        4 * inputs["logits"].numel() + 8 * len(inputs["logits"]) * inputs["routing"].top_k,
        4 * inputs["logits"].numel(),
    ),
    order=("triton", "native", "reference"),
    native_kernels=("route_experts", "route_experts_by_bias", "route_scaled_experts"),
    alone=lambda inputs, index: {**inputs, "logits": inputs["logits"][index : index + 1]},
)
