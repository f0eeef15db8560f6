"""The memory in which a vision transformer computes its layers, and the captured layers over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.kernels.step_inputs import LayerCache
from penstock.models.towers.attention_groups import AttentionGroups

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class LayerMemory(Generic[Tensor]):
    """The memory of the layers of a vision transformer over N rows.

    - `residual`, `queries`: [N, W].
    - `table`: the RoPE table.
    - `divisions`: the attention groups of each division.
    - `caches`: two key-value caches, which the layers use in turn.
    """

    residual: Any
    queries: Any
    table: Any
    divisions: Sequence[AttentionGroups[Tensor]]
    caches: Sequence[LayerCache[Tensor]]

    @property
    def size_bytes(self) -> int:
        caches: list[Any] = [part for one in self.caches for part in (one.keys, one.values)]
        tensors = (self.residual, self.queries, self.table, *caches)
        return sum(int(tensor.nbytes) for tensor in tensors)


@dataclass(frozen=True, slots=True)
class CapturedLayers(Generic[Tensor]):
    """Layers that compute over `memory`. `replays`: the first queries, then each layer."""

    memory: LayerMemory[Tensor]
    replays: tuple[Callable[[], None], ...]

    @property
    def size_bytes(self) -> int:
        return self.memory.size_bytes

    def load(self, residual: Tensor, table: Tensor) -> None:
        """Copy the input of the layers to their memory."""
        self.memory.residual[:] = residual
        self.memory.table[:] = table
