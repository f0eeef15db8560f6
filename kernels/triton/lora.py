"""Adapters of low rank: segments of rows with one adapter, two launches for all slices of a layer.

The grids are sized by what the slots can hold, and a program finds its rows and its factors through
tables on the device: a captured launch serves whatever is installed later. Programs past the rows
or the rank at hand end at once. Sums have one order whatever the segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from penstock.kernels.lora import LinearFactors, SlotSizes
from penstock.kernels.op import Impl
from penstock.kernels.ops.lora import LORA
from penstock.kernels.table import AdapterRows
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.launch import ceil_div, in_units, launch, why_not

_BLOCK_ROWS = 16
_BLOCK_RANK = 16
_BLOCK_DEPTH = 64
_BLOCK_OUT = 64
_FEW_GROUPS = 32  # lanes of a warp
_ALIGNED_ITEMS = 16


class TritonAdapter:
    """One piece of host memory for all factors, and the bytes at which those of each slice begin:
    a [R, K] and b [N, R] over powers of two whose product is `scale` [slices, max_rank]. For a GPU
    it is pinned, so that a copy of it makes nobody wait."""

    def __init__(
        self, factors: Sequence[LinearFactors], max_rank: int, device: str, dtype: torch.dtype
    ) -> None:
        slices = [one for linear in factors for one in linear]
        ranks = [0 if one is None else len(one.a) for one in slices]
        scale = np.ones((len(slices), max_rank), np.float32)
        places = np.zeros((len(slices), 2), np.int64)
        parts: list[np.ndarray] = []
        taken = 0
        for index, one in enumerate(slices):
            if one is None:
                continue
            a_unit, b_unit = _units(one.a, dtype), _units(one.b.T, dtype)
            scale[index, : ranks[index]] = a_unit * b_unit
            for which, part in enumerate((one.a / a_unit[:, None], one.b / b_unit)):
                places[index, which] = taken
                parts.append(np.pad(part.reshape(-1), (0, -part.size % _ALIGNED_ITEMS)))
                taken += parts[-1].size
        memory = torch.from_numpy(np.concatenate(parts or [np.zeros(1)])).to(dtype)
        self.memory = _hosted(memory, device)
        self.places = torch.from_numpy(places * memory.element_size())
        self.ranks = _hosted(torch.tensor(ranks, dtype=torch.int32), device)
        self.scale = _hosted(torch.from_numpy(scale), device)

    @property
    def size_bytes(self) -> int:
        """Of the factors: what `scale` and the rest of a slot take is there from the start."""
        return self.memory.nbytes


def _hosted(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """In memory that `device` copies from by itself."""
    return tensor.pin_memory() if device.startswith("cuda") else tensor


def _units(rows: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """For each row the power of two that brings its largest element into 1..2; 1 for float32."""
    largest = np.abs(rows).max(axis=1)
    if dtype == torch.float32:
        return np.ones_like(largest)
    _, exponent = np.frexp(largest)
    units: np.ndarray = np.where(largest > 0, np.exp2(np.clip(exponent - 1.0, -126, 126)), 1)
    return units.astype(np.float32)


class TritonSlots:
    """`kernels.lora.Slots` on a device; "i8" is kept in 16 bits, which cost a device less than
    widening. What `install` and `clear` write, they write when the current stream gets there."""

    def __init__(
        self, sizes: SlotSizes, device: str = "cuda", dtype: torch.dtype = torch.float32
    ) -> None:
        self.sizes = sizes
        self._device = device
        self.factor_dtype = torch.float32 if sizes.store == "f32" else torch.float16
        slices = sum(len(rows) for _, rows in sizes.linears)
        shape = (sizes.capacity, slices)
        self.places = torch.zeros((*shape, 2), dtype=torch.int64, device=device)
        self.ranks = torch.zeros(shape, dtype=torch.int32, device=device)
        self.scale = torch.ones((*shape, sizes.max_rank), dtype=torch.float32, device=device)
        self.shapes = [_shape_of(rows, device) for _, rows in sizes.linears]
        self.first_slices = np.cumsum([0, *(len(rows) for _, rows in sizes.linears)]).tolist()
        self._held: list[torch.Tensor | None] = [None] * sizes.capacity

    def pack(self, factors: Sequence[LinearFactors]) -> TritonAdapter:
        return TritonAdapter(factors, self.sizes.max_rank, self._device, self.factor_dtype)

    def install(self, slot: int, packed: TritonAdapter) -> None:
        memory = packed.memory.to(self._device, non_blocking=True)
        places = _hosted(packed.places + memory.data_ptr(), self._device)
        for table, own in ((self.places, places), (self.ranks, packed.ranks)):
            table[slot].copy_(own, non_blocking=True)
        self.scale[slot].copy_(packed.scale, non_blocking=True)
        self._held[slot] = memory

    def clear(self, slot: int) -> None:
        self.ranks[slot] = 0
        self._held[slot] = None


def _shape_of(rows: tuple[int, ...], device: str) -> torch.Tensor:
    """Of each slice its outputs, and its first output column: [slices, 2] int32."""
    columns = np.cumsum([0, *rows[:-1]])
    return torch.tensor(np.stack([rows, columns], axis=1), dtype=torch.int32, device=device)


@triton.jit
def _segment(
    starts, slots, ranks, block, groups, num_slices, piece,
    MOST_GROUPS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """The rows of `block` in the list of blocks of all groups: where they begin and end in the
    order, their slot's entry in the tables and its rank. Past the last block they are empty."""
    group = tl.arange(0, MOST_GROUPS)
    begin = tl.load(starts + group, mask=group < groups, other=0)
    end = tl.load(starts + group + 1, mask=group < groups, other=0)
    blocks = (end - begin + BLOCK_ROWS - 1) // BLOCK_ROWS
    last = tl.cumsum(blocks, 0)
    mine = (last > block) & (last - blocks <= block)
    first = tl.sum(tl.where(mine, begin + (block - (last - blocks)) * BLOCK_ROWS, 0), 0)
    stop = tl.sum(tl.where(mine, end, 0), 0)
    slot = tl.sum(tl.where(mine, tl.load(slots + group, mask=mine, other=0), 0), 0)
    entry = slot.to(tl.int64) * num_slices + piece
    rank = tl.load(ranks + entry, mask=stop > first, other=0)
    return first, stop, entry, rank


_SIZES = ["groups", "num_slices", "first_slice", "inner_columns", "max_rank"]


@triton.jit(do_not_specialize=[*_SIZES, "units"])
def lora_shrink_kernel(
    inner, x, order, starts, slots, places, ranks, scale,
    groups, num_slices, first_slice, inner_columns, max_rank, units,
    UNIT: tl.constexpr, HALF: tl.constexpr, MOST_GROUPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """inner = scale * (x @ a^T), of `units * UNIT` columns of x."""
    width = units * UNIT
    piece = tl.program_id(1)
    first, stop, entry, rank = _segment(
        starts, slots, ranks, tl.program_id(0), groups, num_slices, first_slice + piece,
        MOST_GROUPS, BLOCK_ROWS,
    )  # fmt: skip
    r = tl.program_id(2) * BLOCK_RANK + tl.arange(0, BLOCK_RANK)
    if tl.program_id(2) * BLOCK_RANK < rank:
        place = first + tl.arange(0, BLOCK_ROWS)
        here = place < stop
        row = tl.load(order + place, mask=here, other=0).to(tl.int64)
        if HALF:
            a = tl.load(places + entry * 2).to(tl.pointer_type(tl.float16))
        else:
            a = tl.load(places + entry * 2).to(tl.pointer_type(tl.float32))
        total = tl.zeros((BLOCK_ROWS, BLOCK_RANK), dtype=tl.float32)
        for start in range(0, width, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            inside = (k < width)[None, :]
            from_x, from_a = x + row[:, None] * width, a + r[:, None] * width
            left = tl.load(from_x + k[None, :], mask=here[:, None] & inside, other=0)
            right = tl.load(from_a + k[None, :], mask=(r < rank)[:, None] & inside, other=0)
            left, right = left.to(tl.float32), right.to(tl.float32)
            total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
        unit = tl.load(scale + entry * max_rank + r, mask=r < rank, other=0)
        to = inner + place[:, None].to(tl.int64) * inner_columns + piece * max_rank + r[None, :]
        tl.store(to, total * unit[None, :], mask=here[:, None] & (r < rank)[None, :])


@triton.jit(do_not_specialize=[*_SIZES, "columns"])
def lora_expand_kernel(
    y, inner, order, starts, slots, places, ranks, shapes,
    groups, num_slices, first_slice, inner_columns, max_rank, columns,
    HALF: tl.constexpr, MOST_GROUPS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """y += inner @ b^T, where the slice of y lies."""
    piece = tl.program_id(1)
    first, stop, entry, rank = _segment(
        starts, slots, ranks, tl.program_id(0), groups, num_slices, first_slice + piece,
        MOST_GROUPS, BLOCK_ROWS,
    )  # fmt: skip
    width = tl.load(shapes + piece * 2)
    n = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    if (rank > 0) & (tl.program_id(2) * BLOCK_N < width):
        place = first + tl.arange(0, BLOCK_ROWS)
        here = place < stop
        row = tl.load(order + place, mask=here, other=0).to(tl.int64)
        if HALF:
            b = tl.load(places + entry * 2 + 1).to(tl.pointer_type(tl.float16))
        else:
            b = tl.load(places + entry * 2 + 1).to(tl.pointer_type(tl.float32))
        total = tl.zeros((BLOCK_ROWS, BLOCK_N), dtype=tl.float32)
        for start in range(0, rank, BLOCK_RANK):
            r = start + tl.arange(0, BLOCK_RANK)
            known = (r < rank)[None, :]
            from_inner = inner + place[:, None].to(tl.int64) * inner_columns + piece * max_rank
            left = tl.load(from_inner + r[None, :], mask=here[:, None] & known, other=0)
            from_b = b + n[:, None] * rank
            right = tl.load(from_b + r[None, :], mask=(n < width)[:, None] & known, other=0)
            total = tl.dot(left, tl.trans(right.to(tl.float32)), total, input_precision="ieee")
        column = tl.load(shapes + piece * 2 + 1) + n
        to = y + row[:, None] * columns + column[None, :]
        inside = here[:, None] & (n < width)[None, :]
        before = tl.load(to, mask=inside, other=0).to(tl.float32)
        tl.store(to, before + total, mask=inside)


def lora(
    x: torch.Tensor,
    y: torch.Tensor,
    slots: TritonSlots,
    linear: int,
    rows: AdapterRows[torch.Tensor],
) -> torch.Tensor:
    """See `Ops.lora`. `x` and `y` are contiguous."""
    width, pieces = slots.sizes.linears[linear]
    groups, max_rank = len(rows.slots), slots.sizes.max_rank
    inner = torch.empty(len(x), len(pieces) * max_rank, dtype=torch.float32, device=x.device)
    # Each group may leave one block that is not full.
    blocks = ceil_div(len(x), _BLOCK_ROWS) + groups
    half = slots.factor_dtype == torch.float16
    where = (rows.order, rows.starts, rows.slots, slots.places, slots.ranks)
    counts = (groups, slots.ranks.shape[1], slots.first_slices[linear], inner.shape[1], max_rank)
    units, unit = in_units(width)
    constants = {
        "HALF": half,
        "MOST_GROUPS": _most_groups(groups),
        "BLOCK_ROWS": _BLOCK_ROWS,
        "BLOCK_RANK": _BLOCK_RANK,
    }
    launch(
        lora_shrink_kernel,
        (blocks, len(pieces), ceil_div(max_rank, _BLOCK_RANK)),
        inner, x, *where, slots.scale, *counts, units,
        UNIT=unit, BLOCK_K=_BLOCK_DEPTH, **constants,
    )  # fmt: skip
    launch(
        lora_expand_kernel,
        (blocks, len(pieces), ceil_div(max(pieces), _BLOCK_OUT)),
        y, inner, *where, slots.shapes[linear], *counts, y.shape[1],
        BLOCK_N=_BLOCK_OUT, **constants,
    )  # fmt: skip
    return y


def _most_groups(groups: int) -> int:
    """What a kernel is compiled for: 32, 256, 2048 and so on, so that few kernels serve all."""
    most = _FEW_GROUPS
    while most < groups:
        most *= 8
    return most


LORA.register(Impl("triton", lora, why_not, pack=TritonSlots, invariant_kinds=("float", "i8")))
