"""Routes tokens to experts: a program chooses the experts of one token and computes their
shares."""

from __future__ import annotations

import torch

from penstock.kernels.ops.route_experts import ROUTE_EXPERTS
from penstock.kernels.registry import Impl
from penstock.kernels.routing import SCORINGS, Routing
from penstock.kernels.triton.compile.launch import launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton


@triton.jit
def _order(values, inside):
    """Return integers in the order of floats, which order NaN too, so that no expert is chosen
    twice. -0 equals 0."""
    plain = tl.where(values == 0.0, 0.0, values)
    bits = plain.to(tl.int32, bitcast=True)
    return tl.where(inside, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), -2147483648)


@triton.jit
def _best(order, lane, BLOCK: tl.constexpr):
    """Return the lane with the largest order, the lower one among equals."""
    return tl.min(tl.where(order == tl.max(order, axis=0), lane, BLOCK), axis=0)


@triton.jit
def _keep_best_groups(
    order, scores, expert, inside,
    COUNT: tl.constexpr, GROUPS: tl.constexpr, KEPT: tl.constexpr, BEST: tl.constexpr,
    BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Return `order` with the least value for experts outside the KEPT best groups. The score of a
    group is the sum of its BEST largest `scores`."""
    SIZE: tl.constexpr = COUNT // GROUPS
    group, lane = expert // SIZE, tl.arange(0, LANES)
    of_groups = tl.full((LANES,), float("-inf"), dtype=tl.float32)
    for g in tl.static_range(GROUPS):
        own = _order(scores, inside & (group == g))
        first = _best(own, expert, BLOCK)
        score = tl.sum(tl.where(expert == first, scores, 0.0), axis=0)
        if BEST > 1 and SIZE > 1:
            second = _best(tl.where(expert == first, -2147483648, own), expert, BLOCK)
            score += tl.sum(tl.where(expert == second, scores, 0.0), axis=0)
        of_groups = tl.where(lane == g, score, of_groups)
    ranks = _order(of_groups, lane < GROUPS)
    kept = expert < 0
    for _ in tl.static_range(KEPT):
        best = _best(ranks, lane, LANES)
        kept = kept | (group == best)
        ranks = tl.where(lane == best, -2147483648, ranks)
    return tl.where(kept, order, -2147483648)


@triton.jit(do_not_specialize=["epsilon", "scale", "most"])
def route_kernel(
    chosen,
    shares,
    logits,
    extra,
    epsilon,
    scale,
    most,
    COUNT: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    SCORING: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    BEST: tl.constexpr,
    BIASED: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    GROUP_LANES: tl.constexpr,
):
    """Choose the experts of one token and store their numbers and shares, as `kernels.routing`
    specifies. SCORING: the index in `SCORINGS`. KEPT: groups per token. BIASED: `extra` are biases.
    SCALED: `extra` are factors of shares. `most`: twice the jitter."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    lane = tl.arange(0, LANES)
    inside = expert < COUNT
    values = tl.load(logits + token * COUNT + expert, mask=inside, other=0.0).to(tl.float32)
    ranked, scores = values, values
    if BIASED or (KEPT < GROUPS and BEST > 1):
        if SCORING == 1:
            scores = 1.0 / (1.0 + tl.exp(-values))
        else:
            peak = tl.max(tl.where(inside, values, float("-inf")), axis=0)
            powers = tl.where(inside, tl.exp(values - peak), 0.0)
            scores = powers / tl.sum(powers, axis=0)
        if BIASED:
            scores += tl.load(extra + expert, mask=inside, other=0.0).to(tl.float32)
            ranked = scores
    order = _order(ranked, inside)
    if KEPT < GROUPS:
        order = _keep_best_groups(
            order, scores, expert, inside, COUNT, GROUPS, KEPT, BEST, BLOCK, GROUP_LANES
        )
    numbers = tl.zeros((LANES,), dtype=tl.int32)
    picked = tl.full((LANES,), float("-inf"), dtype=tl.float32)
    totals = tl.full((LANES,), 1.0, dtype=tl.float32)
    left = values
    for c in tl.static_range(PER_TOKEN):
        best = _best(order, expert, BLOCK)
        value = tl.sum(tl.where(expert == best, values, 0.0), axis=0)
        numbers = tl.where(lane == c, best, numbers)
        picked = tl.where(lane == c, value, picked)
        order = tl.where(expert == best, -2147483648, order)
        if SCORING == 2:
            far = (value - values) / tl.maximum(tl.abs(values), value) > most
            near = tl.sum(tl.where(inside & (far == 0), tl.exp(left - value), 0.0), axis=0)
            totals = tl.where(lane == c, near, totals)
            left = tl.where(expert == best, float("-inf"), left)
    used = lane < PER_TOKEN
    if SCORING == 0:
        highest = tl.sum(tl.where(lane == 0, picked, 0.0), axis=0)
        if BIASED or KEPT < GROUPS:
            highest = tl.max(picked, axis=0)
            if not RENORMALIZE:
                highest = tl.max(tl.where(inside, values, float("-inf")), axis=0)
        weight = tl.where(used, tl.exp(picked - highest), 0.0)
        if RENORMALIZE:
            total = tl.sum(weight, axis=0)
        else:
            total = tl.sum(tl.where(inside, tl.exp(values - highest), 0.0), axis=0)
        weight = tl.div_rn(weight, total)
    elif SCORING == 1:
        weight = tl.where(used, 1.0 / (1.0 + tl.exp(-picked)), 0.0)
        if RENORMALIZE:
            weight = tl.div_rn(weight, tl.sum(weight, axis=0) + epsilon)
    else:
        weight = 1.0 / totals
    weight *= scale
    if SCALED:
        weight *= tl.load(extra + numbers, mask=used, other=0.0).to(tl.float32)
    place = token * PER_TOKEN + lane
    tl.store(chosen + place, numbers, mask=used)
    tl.store(shares + place, weight, mask=used)


def route_experts(
    logits: torch.Tensor,
    routing: Routing,
    bias: torch.Tensor | None = None,
    expert_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.route_experts`. All tensors are contiguous."""
    if expert_scale is not None and (bias is not None or routing.scoring == "sparsemixer"):
        raise ValueError("expert_scale: is not supported with a bias or with sparsemixer")
    tokens, count = logits.shape
    chosen = torch.empty(tokens, routing.top_k, dtype=torch.int32, device=logits.device)
    shares = torch.empty(tokens, routing.top_k, dtype=torch.float32, device=logits.device)
    extra = bias if bias is not None else logits if expert_scale is None else expert_scale
    launch(
        route_kernel,
        (tokens,),
        *(chosen, shares, logits, extra),
        *(routing.epsilon, routing.scale, 2 * routing.jitter),
        COUNT=count,
        PER_TOKEN=routing.top_k,
        SCORING=SCORINGS.index(routing.scoring),
        RENORMALIZE=int(routing.renormalize),
        GROUPS=routing.groups,
        KEPT=routing.groups_per_token,
        BEST=routing.best_of_group,
        BIASED=int(bias is not None),
        SCALED=int(expert_scale is not None),
        BLOCK=power_of_two(count),
        LANES=power_of_two(routing.top_k),
        GROUP_LANES=power_of_two(routing.groups),
    )
    return chosen, shares


ROUTE_EXPERTS.register(Impl("triton", route_experts, why_not, invariant_kinds=("float",)))
