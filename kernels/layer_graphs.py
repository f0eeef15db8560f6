"""Captured computations: a sequence of kernels that is launched at once. This module imports no
torch; GPUs implement it with CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Captures a computation on fixed memory, and returns a function that replays it. The computation
may run several times during the capture."""


class Captured(Protocol):
    """Captured computations with their memory. `size_bytes`: bytes of that memory."""

    @property
    def size_bytes(self) -> int: ...


CapturedT = TypeVar("CapturedT", bound=Captured)


class LayerGraphs(Protocol):
    """Keeps captured computations by key. Their memory serves one computation at a time: an item is
    encoded after another."""

    def recall(self, key: Hashable, make: Callable[[Capture], CapturedT]) -> CapturedT | None:
        """Return what `make` captures for `key`. Return None, so that the caller computes kernel by
        kernel, if the key is new, as a capture costs more than it saves once, or if `make` failed
        or took too much memory before."""
