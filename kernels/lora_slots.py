"""LoRA adapters in a fixed number of slots, which are operands of the op `lora`.

The number and the sizes of the slots are fixed when they are created. Their contents change between
steps, so that a captured CUDA graph also works for adapters that were loaded after its capture.
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
    """The low-rank factors of an update of one matrix [N, C]: they add b @ (a @ x) to its result.
    Both are float32, in C order and finite.

    `a`: [Q, C].
    `b`: [N, Q].
    """

    a: Floats
    b: Floats


LinearFactors: TypeAlias = "tuple[LoraFactors | None, ...]"
"""The factors of each slice of a linear layer; None if the adapter does not change the slice."""


@dataclass(frozen=True, slots=True)
class SlotSizes:
    """The sizes of adapter slots.

    `capacity`: number of slots.
    `max_rank`: largest rank of an adapter.
    `linears`: for each linear layer, its C and the N of each of its slices (q, k, v; gate, up).
    `storage_dtype`: the type to which factors are rounded. Each row of `a` and each column of `b`
        has a scale; with "i8", 127 times the scale is the largest element.
    """

    capacity: int
    max_rank: int
    linears: tuple[tuple[int, tuple[int, ...]], ...]
    storage_dtype: StorageDtype = "f32"


class PackedAdapter(Protocol):
    """An adapter in the memory layout that the kernels of one implementation read."""

    @property
    def size_bytes(self) -> int: ...


class AdapterSlots(Protocol):
    """The slots that `Ops.adapter_slots` creates. Call `install` and `clear` only between steps;
    `pack` may be called in any thread at any time."""

    def pack(self, factors: Sequence[LinearFactors]) -> PackedAdapter:
        """Return an adapter packed for `install`. `factors[i]`: factors of the linear layer i.
        Raises ValueError for factors that do not fit the slots."""

    def install(self, slot: int, packed: Any) -> None:
        """Put a packed adapter into `slot`. `packed`: the result of `pack`, also of other slots
        with the same sizes."""

    def clear(self, slot: int) -> None:
        """Empty `slot`. `lora` then adds nothing to rows with this slot."""
