"""Routes tokens to experts, and sorts the (token, chosen expert) pairs of a step by expert.

A pair is called `choice` in the code. Pairs are numbered token by token: t * top_k + k. The pairs
of each expert fill their own tiles; unused rows of a tile hold the total number of pairs, which is
not a valid number. Lists have the length of the worst case, so that the host does not need to know
which experts were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from penstock.kernels.ops.route_experts import ROUTE_EXPERTS
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton

_CHOICES_A_TURN = 1024
_TILES_A_TURN = 64


@triton.jit
def route_kernel(
    chosen,
    shares,
    logits,
    COUNT: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):
    """Choose the experts with the largest logits for one token, the lower index first among equal
    logits, and store their indices and shares. Logits are compared as integers in the order of
    floats: this orders NaN too, so that no expert is chosen twice."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    lane = tl.arange(0, LANES)
    inside = expert < COUNT
    values = tl.load(logits + token * COUNT + expert, mask=inside, other=0.0).to(tl.float32)
    plain = tl.where(values == 0.0, 0.0, values)  # no -0
    bits = plain.to(tl.int32, bitcast=True)
    least = -2147483648
    order = tl.where(inside, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), least)
    numbers = tl.zeros((LANES,), dtype=tl.int32)
    picked = tl.full((LANES,), float("-inf"), dtype=tl.float32)
    for c in tl.static_range(PER_TOKEN):
        best = tl.min(tl.where(order == tl.max(order, axis=0), expert, BLOCK), axis=0)
        value = tl.sum(tl.where(expert == best, values, 0.0), axis=0)
        numbers = tl.where(lane == c, best, numbers)
        picked = tl.where(lane == c, value, picked)
        order = tl.where(expert == best, least, order)
    highest = tl.sum(tl.where(lane == 0, picked, 0.0), axis=0)
    used = lane < PER_TOKEN
    weight = tl.where(used, tl.exp(picked - highest), 0.0)
    if RENORMALIZE:
        total = tl.sum(weight, axis=0)
    else:
        total = tl.sum(tl.where(inside, tl.exp(values - highest), 0.0), axis=0)
    place = token * PER_TOKEN + lane
    tl.store(chosen + place, numbers, mask=used)
    tl.store(shares + place, tl.div_rn(weight, total), mask=used)


def route_experts(
    logits: torch.Tensor, per_token: int, renormalize: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.route_experts`. `logits` are contiguous."""
    tokens, count = logits.shape
    chosen = torch.empty(tokens, per_token, dtype=torch.int32, device=logits.device)
    shares = torch.empty(tokens, per_token, dtype=torch.float32, device=logits.device)
    launch(
        route_kernel,
        (tokens,),
        *(chosen, shares, logits),
        COUNT=count,
        PER_TOKEN=per_token,
        RENORMALIZE=int(renormalize),
        BLOCK=power_of_two(count),
        LANES=power_of_two(per_token),
    )
    return chosen, shares


@triton.jit(do_not_specialize=["choices"])
def count_choices_kernel(counts, chosen, choices, BLOCK: tl.constexpr):
    """Count the (token, chosen expert) pairs of one expert."""
    expert = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    count = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, choices, BLOCK):
        choice = start + lane
        own = tl.load(chosen + choice, mask=choice < choices, other=-1)
        count += (own == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(count, axis=0))


@triton.jit(do_not_specialize=["choices"])
def order_choices_kernel(
    order,
    tile_expert,
    tiles,
    counts,
    chosen,
    choices,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    TURN: tl.constexpr,
):
    """Write the (token, chosen expert) pairs of one expert to its tiles, in ascending order, and
    the expert's index to `tile_expert` for each of these tiles. The program of expert 0 also writes
    the number of tiles."""
    expert = tl.program_id(0)
    all_experts = tl.arange(0, EXPERTS)
    all_counts = tl.load(counts + all_experts, mask=all_experts < COUNT, other=0)
    all_tiles = (all_counts + TILE - 1) // TILE
    first = tl.sum(tl.where(all_experts < expert, all_tiles, 0), axis=0)
    count = tl.sum(tl.where(all_experts == expert, all_counts, 0), axis=0)
    own_tiles = (count + TILE - 1) // TILE
    lane = tl.arange(0, BLOCK)
    place = first * TILE
    for start in range(0, choices, BLOCK):
        choice = start + lane
        is_own = tl.load(chosen + choice, mask=choice < choices, other=-1) == expert
        one = is_own.to(tl.int32)
        tl.store(order + place + tl.cumsum(one, axis=0) - one, choice, mask=is_own)
        place += tl.sum(one, axis=0)
    rest = tl.arange(0, TILE)
    tl.store(order + place + rest, choices, mask=place + rest < (first + own_tiles) * TILE)
    turn = tl.arange(0, TURN)
    for start in range(0, own_tiles, TURN):
        tile = start + turn
        tl.store(tile_expert + first + tile, expert, mask=tile < own_tiles)
    tl.store(tiles, tl.sum(all_tiles, axis=0), mask=expert == 0)


@dataclass(frozen=True, slots=True)
class Order:
    """The (token, chosen expert) pairs of a step in tiles, int32 on the device.

    `order: [capacity * rows]`: numbers of the pairs, sorted by expert.
    `tile_expert: [capacity]`: expert of each tile.
    `tiles: [1]`: number of tiles in use.
    `rows`: pairs in a tile.
    """

    order: torch.Tensor
    tile_expert: torch.Tensor
    tiles: torch.Tensor
    rows: int

    @property
    def capacity(self) -> int:
        return len(self.tile_expert)


def most_tiles(choices: int, count: int, rows: int) -> int:
    """Return the most tiles of `rows` rows that `choices` (token, chosen expert) pairs can fill.
    `count`: number of experts."""
    return (choices + min(choices, count) * (rows - 1)) // rows


def order_choices(chosen: torch.Tensor, count: int, rows: int) -> Order:
    """Sort the (token, chosen expert) pairs of `chosen` [T, top_k] by expert, into tiles of `rows`
    pairs. `count`: number of experts."""
    choices = chosen.numel()
    capacity = most_tiles(choices, count, rows)

    def empty(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int32, device=chosen.device)

    counts, ordered = empty(count), Order(empty(capacity * rows), empty(capacity), empty(1), rows)
    launch(count_choices_kernel, (count,), counts, chosen, choices, BLOCK=_CHOICES_A_TURN)
    launch(
        order_choices_kernel,
        (count,),
        *(ordered.order, ordered.tile_expert, ordered.tiles, counts, chosen, choices),
        COUNT=count,
        EXPERTS=power_of_two(count),
        TILE=rows,
        BLOCK=_CHOICES_A_TURN,
        TURN=_TILES_A_TURN,
    )
    return ordered


ROUTE_EXPERTS.register(Impl("triton", route_experts, why_not, invariant_kinds=("float",)))
