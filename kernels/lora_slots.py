"""LoRA adapters in a fixed number of slots: the operands of the op `lora`.

The number and the sizes of the slots are fixed when they are created; their contents change between
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
    """The low-rank factors of one matrix [N, C]: `a` [Q, C] and `b` [N, Q], float32 in C order,
    finite. They add b @ (a @ x)."""

    a: Floats
    b: Floats


LinearFactors: TypeAlias = "tuple[LoraFactors | None, ...]"
"""The factors of each slice of a linear layer; None if the adapter does not change the slice."""


@dataclass(frozen=True, slots=True)
class SlotSizes:
    """The sizes of `capacity` slots for adapters of ranks up to `max_rank`.

    `linears`: for each linear layer C, and the N of its slices (q, k, v; gate, up).
    `storage_dtype`: the type to which the factors are rounded; each rank has a scale for its row of
    a and one for its column of b, so that "i8" holds 127 steps of the largest element.
    """

    capacity: int
    max_rank: int
    linears: tuple[tuple[int, tuple[int, ...]], ...]
    storage_dtype: StorageDtype = "f32"


class PackedAdapter(Protocol):
    """An adapter in the form that one implementation's kernels read."""

    @property
    def size_bytes(self) -> int: ...


class AdapterSlots(Protocol):
    """The slots that `Ops.adapter_slots` creates. Call `install` and `clear` between steps; `pack`
    may run in any thread at any time."""

    def pack(self, factors: Sequence[LinearFactors]) -> PackedAdapter:
        """Prepare an adapter; `factors[i]` belongs to the linear layer i. Raises ValueError for
        factors that do not fit."""

    def install(self, slot: int, packed: Any) -> None:
        """Make `slot` add the adapter that `pack` of slots of these sizes returned."""

    def clear(self, slot: int) -> None:
        """Make `slot` add nothing."""
