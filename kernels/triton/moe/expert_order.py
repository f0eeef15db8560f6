"""Sorts the (token, chosen expert) pairs of a step by expert.

A pair is called `choice` in the code. Pairs are numbered token by token: t * top_k + k. The pairs
of each expert fill their own tiles; unused rows of a tile hold the total number of pairs, which is
not a valid number. Lists have the length of the worst case, so that the host does not need to know
which experts were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from penstock.kernels.triton.compile.launch import launch, power_of_two
from penstock.kernels.triton.language import tl, triton

_CHOICES_A_TURN = 1024
_TILES_A_TURN = 64


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
