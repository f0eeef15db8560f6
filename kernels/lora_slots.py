"""What the op `lora` works over: adapters of low rank in slots of fixed number.

The number and the sizes of slots are fixed when they are made; what lies in them changes between
steps, so that a captured step serves adapters that were loaded after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

StorageDtype = Literal["f32", "f16", "i8"]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LoraFactors:
    """Of one matrix [N, K]: `a` [R, K] and `b` [N, R], float32 in C order, finite. It adds
    b @ (a @ x)."""

    a: Floats
    b: Floats


LinearFactors: TypeAlias = "tuple[LoraFactors | None, ...]"
"""One for each slice of a linear layer; None where the adapter leaves it as it is."""


@dataclass(frozen=True, slots=True)
class SlotSizes:
    """`capacity` slots for adapters of ranks up to `max_rank`.

    `linears`: of each linear layer K and the N of its slices (q, k, v; gate, up). `storage_dtype`:
    what the
    factors are rounded to; a rank's row of a and column of b have a scale each, so that "i8" holds
    127 steps of the largest.
    """

    capacity: int
    max_rank: int
    linears: tuple[tuple[int, tuple[int, ...]], ...]
    storage_dtype: StorageDtype = "f32"


class PackedAdapter(Protocol):
    """An adapter as the kernels of one implementation read it."""

    @property
    def size_bytes(self) -> int: ...


class AdapterSlots(Protocol):
    """What `Ops.adapter_slots` makes. `install` and `clear` come between steps; `pack` may run in
    any thread at any time."""

    def pack(self, factors: Sequence[LinearFactors]) -> PackedAdapter:
        """`factors[i]`: of the linear layer i. Raises ValueError for what does not fit."""

    def install(self, slot: int, packed: Any) -> None:
        """What `pack` of slots of these sizes gave is what `slot` adds from now on."""

    def clear(self, slot: int) -> None:
        """`slot` adds nothing."""
