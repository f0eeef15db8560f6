"""LoRA for steps with several adapters: two launches compute all slices of a linear layer.

The rows of a step are grouped by adapter. A program finds its rows and its adapter's factors
through tables on the device, and the grid is sized by the capacity of the slots: a captured launch
also serves adapters that are installed later. Programs past the last row or past the rank return at
once.

The columns of x are summed in `_PARTS` parts, which are then added in order: the order of a sum
does not depend on the batch. With few rows each part has its own program; otherwise a few
multiprocessors would do all the work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from penstock.kernels.lora_slots import LinearFactors, SlotSizes
from penstock.kernels.ops.lora import LORA
from penstock.kernels.registry import Impl
from penstock.kernels.step_inputs import AdapterRows
from penstock.kernels.triton.compile.launch import ceil_div, in_units, launch, why_not
from penstock.kernels.triton.language import tl, triton

_BLOCK_ROWS = 16
_BLOCK_RANK = 16
_BLOCK_OUT = 128
_PARTS = 8
_FEW_ROWS = 256
_FEW_GROUPS = 32  # lanes of a warp
_ALIGNED_ITEMS = 16


class TritonAdapter:
    """The factors of one adapter in one piece of host memory, which is pinned for a GPU so that its
    copy does not block.

    `memory`: for each slice a [Q, C] and b [Q, N], both divided by powers of two.
    `places: [slices, 2]`: byte offsets of a and b in `memory`.
    `ranks: [slices]`: rank of each slice, 0 for a slice without factors.
    `scale: [slices, max_rank]`: product of the two powers of two.
    """

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
            for which, part in enumerate((one.a / a_unit[:, None], (one.b / b_unit).T)):
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
        """Bytes of the factors, without `scale` and the other tables of a slot, which are allocated
        in advance."""
        return self.memory.nbytes


def _hosted(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Return the tensor in host memory from which `device` copies asynchronously: pinned for a
    GPU."""
    return tensor.pin_memory() if device.startswith("cuda") else tensor


def _units(rows: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return a power of two for each row: divided by it, the row's largest element is between 1 and
    2. Returns ones if `dtype` is float32."""
    largest = np.abs(rows).max(axis=1)
    if dtype == torch.float32:
        return np.ones_like(largest)
    _, exponent = np.frexp(largest)
    units: np.ndarray = np.where(largest > 0, np.exp2(np.clip(exponent - 1.0, -126, 126)), 1)
    return units.astype(np.float32)


class TritonSlots:
    """Adapter slots (`kernels.lora_slots.AdapterSlots`) in device memory. Factors of storage type
    "i8" occupy 16 bits here, because widening 8-bit factors would cost a GPU more than reading 16
    bits. `install` and `clear` write on the current stream."""

    def __init__(
        self, sizes: SlotSizes, device: str = "cuda", dtype: torch.dtype = torch.float32
    ) -> None:
        self.sizes = sizes
        self._device = device
        self.factor_dtype = torch.float32 if sizes.storage_dtype == "f32" else torch.float16
        slices = sum(len(rows) for _, rows in sizes.linears)
        shape = (sizes.capacity, slices)
        self.places = torch.zeros((*shape, 2), dtype=torch.int64, device=device)
        self.ranks = torch.zeros(shape, dtype=torch.int32, device=device)
        self.scale = torch.ones((*shape, sizes.max_rank), dtype=torch.float32, device=device)
        self.out_units = [in_units(math.gcd(*rows), _ALIGNED_ITEMS)[1] for _, rows in sizes.linears]
        self.shapes = [
            _shape_of(rows, unit, device)
            for (_, rows), unit in zip(sizes.linears, self.out_units, strict=True)
        ]
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


def _shape_of(rows: tuple[int, ...], unit: int, device: str) -> torch.Tensor:
    """Return the number of output columns and the first output column of each slice, in units of
    `unit` columns: [slices, 2] int32."""
    columns = np.cumsum([0, *rows[:-1]])
    shapes = np.stack([rows, columns], axis=1) // unit
    return torch.tensor(shapes, dtype=torch.int32, device=device)


@triton.jit
def _segment(
    starts, slots, order, ranks, block, groups, num_slices, piece,
    MOST_GROUPS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Return the rows of block number `block`, counted over the row blocks of all groups: (indices
    in `order`, mask of the valid indices, rows of x, entry of the adapter's slice `piece` in the
    tables, rank). Past the last block the mask is empty and the rank is 0."""
    group = tl.arange(0, MOST_GROUPS)
    known = group < groups
    begin = tl.load(starts + group, mask=known, other=0)
    end = tl.load(starts + group + 1, mask=known, other=0)
    slot = tl.load(slots + group, mask=known, other=0)
    blocks = (end - begin + BLOCK_ROWS - 1) // BLOCK_ROWS
    last = tl.cumsum(blocks, 0)
    mine = (last > block) & (last - blocks <= block)
    first = tl.sum(tl.where(mine, begin + (block - (last - blocks)) * BLOCK_ROWS, 0), 0)
    stop = tl.sum(tl.where(mine, end, 0), 0)
    entry = tl.sum(tl.where(mine, slot, 0), 0).to(tl.int64) * num_slices + piece
    rank = tl.load(ranks + entry, mask=stop > first, other=0)
    place = first + tl.arange(0, BLOCK_ROWS)
    here = place < stop
    row = tl.load(order + place, mask=here, other=0).to(tl.int64)
    return place.to(tl.int64), here, row, entry, rank


@triton.jit
def _factor(places, index, HALF: tl.constexpr):
    """Return the pointer to the factor whose address is `places[index]`. Factors are aligned to 16
    bytes."""
    address = tl.load(places + index)
    if HALF:
        factor = address.to(tl.pointer_type(tl.float16))
    else:
        factor = address.to(tl.pointer_type(tl.float32))
    return tl.multiple_of(factor, 16)


_SIZES = ["groups", "num_slices", "first_slice", "max_rank", "rows", "units"]


@triton.jit(do_not_specialize=_SIZES)
def lora_shrink_kernel(
    inner, x, order, starts, slots, places, ranks, scale,
    groups, num_slices, first_slice, max_rank, rows, units,
    UNIT: tl.constexpr, HALF: tl.constexpr, MOST_GROUPS: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute inner = scale * (x @ a^T) over the `units * UNIT` columns of x, summed in PARTS
    parts. `inner: [parts with their own programs, rows, slices, max_rank rounded up to whole
    blocks]`."""
    # TF32 holds 16-bit floats exactly.
    EXACT: tl.constexpr = HALF and x.dtype.element_ty != tl.float32
    PRECISION: tl.constexpr = "tf32" if EXACT else "ieee"
    width = units * UNIT
    piece = tl.program_id(1)
    place, here, row, entry, rank = _segment(
        starts, slots, order, ranks, tl.program_id(0), groups, num_slices, first_slice + piece,
        MOST_GROUPS, BLOCK_ROWS,
    )  # fmt: skip
    a = _factor(places, 2 * entry, HALF)
    rank_blocks = tl.cdiv(max_rank, BLOCK_RANK)
    block, program = tl.program_id(2) % rank_blocks, tl.program_id(2) // rank_blocks
    r = block * BLOCK_RANK + tl.arange(0, BLOCK_RANK)
    if block * BLOCK_RANK < rank:
        depth = tl.cdiv(width, PARTS * BLOCK_K) * BLOCK_K
        own = PARTS * rank_blocks // tl.num_programs(2) * depth
        total = tl.zeros((BLOCK_ROWS, BLOCK_RANK), dtype=tl.float32)
        part = tl.zeros((BLOCK_ROWS, BLOCK_RANK), dtype=tl.float32)
        for start in range(program * own, tl.minimum((program + 1) * own, width), BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            inside = (k < width)[None, :]
            from_x, from_a = x + row[:, None] * width, a + r[:, None] * width
            left = tl.load(from_x + k[None, :], mask=here[:, None] & inside, other=0)
            right = tl.load(from_a + k[None, :], mask=(r < rank)[:, None] & inside, other=0)
            left, right = left.to(tl.float32), right.to(tl.float32)
            part = tl.dot(left, tl.trans(right), part, input_precision=PRECISION)
            whole = (start + BLOCK_K) % depth == 0
            total = tl.where(whole, total + part, total)
            part = tl.where(whole, 0.0, part)
        unit = tl.load(scale + entry * max_rank + r, mask=r < rank, other=0)
        result = tl.where((r < rank)[None, :], (total + part) * unit[None, :], 0.0)
        to = (program * rows + place) * tl.num_programs(1) + piece
        to = inner + to[:, None] * (rank_blocks * BLOCK_RANK) + r[None, :]
        tl.store(to, result, mask=here[:, None])


@triton.jit(do_not_specialize=_SIZES)
def lora_expand_kernel(
    y, inner, order, starts, slots, places, ranks, shapes,
    groups, num_slices, first_slice, max_rank, rows, units,
    UNIT: tl.constexpr, HALF: tl.constexpr, MOST_GROUPS: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add inner @ b^T to the columns of y that belong to each slice. PARTS: number of parts of
    `inner` to add up. y has `units * UNIT` columns."""
    # Three TF32 products give a float32 product except for its last bit or two.
    PRECISION: tl.constexpr = "tf32x3" if HALF else "ieee"
    piece = tl.program_id(1)
    width = tl.load(shapes + piece * 2) * UNIT
    column = tl.load(shapes + piece * 2 + 1) * UNIT
    place, here, row, entry, rank = _segment(
        starts, slots, order, ranks, tl.program_id(0), groups, num_slices, first_slice + piece,
        MOST_GROUPS, BLOCK_ROWS,
    )  # fmt: skip
    b = _factor(places, 2 * entry + 1, HALF)
    n = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    if (rank > 0) & (tl.program_id(2) * BLOCK_N < width):
        to = y + row[:, None] * (units * UNIT) + (column + n)[None, :]
        inside = here[:, None] & (n < width)[None, :]
        before = tl.load(to, mask=inside, other=0).to(tl.float32)
        ranks_held = tl.cdiv(max_rank, BLOCK_RANK) * BLOCK_RANK
        from_inner = inner + ((place * tl.num_programs(1) + piece) * ranks_held)[:, None]
        part_items = tl.num_programs(1) * ranks_held * rows.to(tl.int64)
        total = tl.zeros((BLOCK_ROWS, BLOCK_N), dtype=tl.float32)
        for start in range(0, rank, BLOCK_RANK):
            r = start + tl.arange(0, BLOCK_RANK)
            left = tl.load(from_inner + r[None, :], mask=here[:, None], other=0)
            for part in tl.static_range(1, PARTS):
                more = from_inner + part * part_items + r[None, :]
                left += tl.load(more, mask=here[:, None], other=0)
            known = (r < rank)[:, None] & (n < width)[None, :]
            from_b = b + r.to(tl.int64)[:, None] * width
            right = tl.load(from_b + n[None, :], mask=known, other=0).to(tl.float32)
            total = tl.dot(left, right, total, input_precision=PRECISION)
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
    rank_blocks = ceil_div(max_rank, _BLOCK_RANK)
    parts = _PARTS if len(x) <= _FEW_ROWS else 1
    columns = len(pieces) * rank_blocks * _BLOCK_RANK
    inner = torch.empty(parts, len(x), columns, dtype=torch.float32, device=x.device)
    # The last block of each group may be partly empty.
    blocks = ceil_div(len(x), _BLOCK_ROWS) + groups
    where = (rows.order, rows.starts, rows.slots, slots.places, slots.ranks)
    counts = (groups, slots.ranks.shape[1], slots.first_slices[linear], max_rank, len(x))
    units, unit = in_units(width)
    single = x.dtype == torch.float32  # no tensor cores: small tiles
    constants = {
        "HALF": slots.factor_dtype == torch.float16,
        "MOST_GROUPS": _most_groups(groups),
        "BLOCK_ROWS": _BLOCK_ROWS,
        "BLOCK_RANK": _BLOCK_RANK,
    }
    launch(
        lora_shrink_kernel,
        (blocks, len(pieces), parts * rank_blocks),
        inner, x, *where, slots.scale, *counts, units,
        num_stages=3 if single else 4, UNIT=unit, PARTS=_PARTS, BLOCK_K=64 if single else 128,
        **constants,
    )  # fmt: skip
    out_unit = slots.out_units[linear]
    launch(
        lora_expand_kernel,
        (blocks, len(pieces), ceil_div(max(pieces), _BLOCK_OUT)),
        y, inner, *where, slots.shapes[linear], *counts, y.shape[1] // out_unit,
        num_stages=2, UNIT=out_unit, PARTS=parts, BLOCK_N=_BLOCK_OUT, **constants,
    )  # fmt: skip
    return y


def _most_groups(groups: int) -> int:
    """Return `groups` rounded up to 32, 256, 2048 and so on, so that few compiled kernels serve all
    steps."""
    most = _FEW_GROUPS
    while most < groups:
        most *= 8
    return most


LORA.register(Impl("triton", lora, why_not, pack=TritonSlots, invariant_kinds=("float", "i8")))
