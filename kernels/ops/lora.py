"""The op `lora`: low-rank updates by many adapters in one call (arXiv 2106.09685)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.lora_slots import LinearFactors, LoraFactors, SlotSizes, StorageDtype
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.step_inputs import AdapterRows


class ReferenceAdapter:
    """An adapter as tensors. `linears`: for each slice of each linear layer its factors (a, b), or
    None."""

    def __init__(self, factors: Sequence[LinearFactors], device: str, dtype: torch.dtype) -> None:
        def tensor(array: Any) -> torch.Tensor:
            return torch.from_numpy(np.array(array)).to(device, dtype)

        self.linears = [
            [None if one is None else (tensor(one.a), tensor(one.b)) for one in linear]
            for linear in factors
        ]

    @property
    def size_bytes(self) -> int:
        pairs = [pair for linear in self.linears for pair in linear if pair is not None]
        return sum(part.nbytes for pair in pairs for part in pair)


class ReferenceSlots:
    """`kernels.lora_slots.AdapterSlots` for the reference: `pack` only converts factors to
    `dtype`."""

    def __init__(
        self, sizes: SlotSizes, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.sizes = sizes
        self._device = device
        self._dtype = dtype
        self.held: list[ReferenceAdapter | None] = [None] * sizes.capacity

    def pack(self, factors: Sequence[LinearFactors]) -> ReferenceAdapter:
        return ReferenceAdapter(factors, self._device, self._dtype)

    def install(self, slot: int, packed: ReferenceAdapter) -> None:
        self.held[slot] = packed

    def clear(self, slot: int) -> None:
        self.held[slot] = None


def lora(
    x: torch.Tensor,
    y: torch.Tensor,
    slots: ReferenceSlots,
    linear: int,
    rows: AdapterRows[torch.Tensor],
) -> torch.Tensor:
    """Add B (A x[t]) to y[t] in place for each row t that has an adapter, and return y. A and B are
    the factors of the row's adapter for the linear layer number `linear`, slice by slice."""
    starts = rows.starts.tolist()
    for group, slot in enumerate(rows.slots.tolist()):
        of_group = rows.order[starts[group] : starts[group + 1]].long()
        adapter = slots.held[slot] if len(of_group) else None
        if adapter is None:
            continue
        column = 0
        for pair, width in zip(
            adapter.linears[linear], slots.sizes.linears[linear][1], strict=True
        ):
            if pair is not None:
                a, b = pair
                y[of_group, column : column + width] += (x[of_group] @ a.T) @ b.T
            column += width
    return y


def _factors(
    source: RandomInputs, rank: int, width: int, rows: int, storage_dtype: StorageDtype
) -> LoraFactors:
    """Return factors that `storage_dtype` represents exactly, so that only the arithmetic is
    tested."""
    a, b = source.normal(rank, width).numpy() / width**0.5, source.normal(rows, rank).numpy()
    if storage_dtype == "f16":
        a, b = a.astype(np.float16), b.astype(np.float16)
    if storage_dtype == "i8":
        a = source.numpy.integers(-126, 127, (rank, width)) * np.float32(2.0**-11)
        b = source.numpy.integers(-126, 127, (rows, rank)) * np.float32(2.0**-7)
        a[:, width // 2], b[rows // 2] = 127 * 2.0**-11, -127 * 2.0**-7
    return LoraFactors(a.astype(np.float32), b.astype(np.float32))


def group_rows(slots: Sequence[int], num_groups: int) -> AdapterRows[torch.Tensor]:
    """Return the `AdapterRows` of rows with these slots (-1: no adapter), with space for
    `num_groups` groups. Undefined entries are out of range."""
    used = sorted({slot for slot in slots if slot >= 0})
    order = [row for slot in used for row, own in enumerate(slots) if own == slot]
    counts = [slots.count(slot) for slot in used] + [0] * (num_groups - len(used))
    return AdapterRows(
        slots=torch.tensor(used + [1 << 30] * (num_groups - len(used)), dtype=torch.int32),
        order=torch.tensor(order + [1 << 30] * (len(slots) - len(order)), dtype=torch.int32),
        starts=torch.tensor([0, *np.cumsum(counts).tolist()], dtype=torch.int32),
    )


def _inputs(
    slots: tuple[int, ...],
    ranks: Mapping[int, int],
    width: int,
    rows: tuple[int, ...],
    storage_dtype: StorageDtype,
    missing: int | None = None,
) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes the inputs of a case.

    `slots`: the slot of each row.
    `ranks`: occupied slot -> rank of its adapter.
    `missing`: index of a slice that the first adapter does not change.
    """

    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        installed = {}
        for slot, rank in ranks.items():
            linear: LinearFactors = tuple(
                _factors(source, rank, width, n, storage_dtype) for n in rows
            )
            if missing is not None and slot == min(ranks):
                linear = (*linear[:missing], None, *linear[missing + 1 :])
            installed[slot] = ((None,), linear)
        sizes = SlotSizes(
            max(ranks) + 2, max(ranks.values()), ((8, (8,)), (width, rows)), storage_dtype
        )
        return {
            "x": source.normal(len(slots), width),
            "y": source.normal(len(slots), sum(rows)),
            "sizes": sizes,
            "installed": installed,
            "rows": group_rows(slots, max(len(set(slots)), 1)),
            "slots": slots,
        }

    return make_inputs


def _invoke(ops: Any, inputs: Inputs) -> tuple[Any, ...]:
    slots = ops.adapter_slots(inputs["sizes"])
    for slot, factors in inputs["installed"].items():
        slots.install(slot, slots.pack(factors))
    return (ops.lora(inputs["x"], inputs["y"], slots, 1, inputs["rows"]),)


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    one = slice(index, index + 1)
    rows = group_rows(inputs["slots"][one], 1)
    return {**inputs, "x": inputs["x"][one], "y": inputs["y"][one], "rows": rows}


def _cost(inputs: Inputs) -> Cost:
    """Return the cost of a case: groups, the factors of each slot in use and x are read once; y is
    read and written."""
    item = {"f32": 4, "f16": 2, "i8": 1}[inputs["sizes"].storage_dtype]
    moved, operations = 4 * (len(inputs["rows"].starts) + len(inputs["rows"].order)), 0
    for slot, (_, linear) in inputs["installed"].items():
        tokens = inputs["slots"].count(slot)
        elements = sum(one.a.size + one.b.size for one in linear if one is not None)
        moved += item * elements if tokens else 0
        operations += 2 * elements * tokens
    used = sum(slot >= 0 for slot in inputs["slots"])
    return Cost(moved + 4 * used * (inputs["x"].shape[1] + 2 * inputs["y"].shape[1]), operations)


def _case(
    name: str,
    slots: tuple[int, ...],
    ranks: Mapping[int, int],
    width: int,
    rows: tuple[int, ...],
    storage_dtype: StorageDtype = "f32",
    missing: int | None = None,
) -> Case:
    make_inputs = _inputs(slots, ranks, width, rows, storage_dtype, missing)
    return Case(f"{storage_dtype}-{name}", _kind(storage_dtype), make_inputs)


def _kind(storage_dtype: StorageDtype) -> str:
    return "i8" if storage_dtype == "i8" else "float"


def _benchmarks() -> tuple[Case, ...]:
    shapes = {
        "qkv": (576, (576, 192, 192)),
        "output": (576, (576,)),
        "gate-up": (576, (1536, 1536)),
        "down": (1536, (576,)),
    }
    storage_dtypes: tuple[StorageDtype, ...] = ("i8", "f16")
    return tuple(
        Case(
            f"smollm2-{name}-{storage_dtype}-{adapters}of16",
            _kind(storage_dtype),
            _inputs(
                tuple(row % adapters for row in range(16)),
                dict.fromkeys(range(adapters), 16),
                width,
                rows,
                storage_dtype,
            ),
        )
        for name, (width, rows) in shapes.items()
        for storage_dtype in storage_dtypes
        for adapters in (1, 8, 16)
    )


LORA = Op(
    name="lora",
    signature=(
        "x float [T, C]; update y float [T, N]; slots AdapterSlots; integer linear; "
        "rows AdapterRows"
    ),
    reference=lora,
    custom_invoke=_invoke,
    pack=ReferenceSlots,
    cases=(
        _case("rank1", (0,), {0: 1}, 32, (8,)),
        _case("qkv", (2, 0, -1, 0, 1, 2, 2), {0: 16, 1: 5, 2: 8}, 96, (64, 32, 32)),
        _case("none", (-1, -1, -1), {0: 4}, 64, (40,)),
        _case("empty-slot", (1, 0, 1), {0: 4}, 64, (40,)),
        _case("missing", (0, 1, 0), {0: 12, 1: 7}, 64, (48, 16, 16), missing=1),
        _case("odd-sizes", (1, 0, 0, 1, 1), {0: 3, 1: 13}, 50, (21, 9)),
        _case("prompt", (0,) * 37 + (1,) * 20, {0: 16, 1: 33}, 64, (72, 24, 24), "f16"),
        _case("gate-up", (3, 1, 0, 2, -1), {0: 1, 1: 64, 2: 100, 3: 17}, 96, (160, 160), "f16"),
        _case("rank256", (0, 1, 0), {0: 256, 1: 255}, 64, (40,), "f16"),
        _case("qkv", (2, 0, -1, 0, 1, 2, 2), {0: 16, 1: 5, 2: 8}, 96, (64, 32, 32), "i8"),
        _case("odd-sizes", (1, 0, 0, 1, 1), {0: 3, 1: 31}, 50, (21, 9), "i8"),
        _case("rank128", tuple(range(9)), dict.fromkeys(range(9), 128), 64, (40, 600), "i8"),
    ),
    benchmarks=_benchmarks(),
    tolerance={
        "float": Tolerance(1e-4, 2e-5),
        "i8": Tolerance(5e-4, 2e-5),  # x and A x may be rounded to 16 bits with one scale per row
    },
    cost=_cost,
    order=("triton", "native", "reference"),
    alone=_alone,
)
