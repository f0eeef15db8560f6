"""Allocates the memory of recurrent states on a CPU."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.recurrent_state import LayerState, StateShape
from penstock.runtime.state_arrays import Shape, array_shapes, layer_states
from penstock.runtime.state_memory import StateMemory

LINE_BYTES: Final = 64


class StateCache:
    """The zeroed states of all layers. `states`: one per layer; None for a layer without a state.

    The operating system allocates a page when it is first written, so rows and snapshots that are
    never used need no memory. Each array is aligned to a cache line.
    """

    def __init__(self, shapes: Sequence[StateShape | None], memory: StateMemory) -> None:
        sizes = [shape for layer in shapes if layer for shape in array_shapes(layer, memory)]
        lines = sum(map(_lines, sizes))
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        # One line more: an array without elements at the end has an address, too.
        pool = mmap.mmap(-1, (lines + 1) * LINE_BYTES, flags=private)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # a hint: without large pages, small ones are used
            pool.madvise(mmap.MADV_HUGEPAGE)
        arrays = _arrays(np.frombuffer(pool, np.float32), sizes)
        self.states: list[LayerState[Any] | None] = layer_states(shapes, arrays)


def _arrays(pool: npt.NDArray[np.float32], sizes: Sequence[Shape]) -> Iterator[Any]:
    """Yield one array of each size, one after another in `pool`."""
    begin = 0
    for shape in sizes:
        yield pool[begin : begin + math.prod(shape)].reshape(shape)
        begin += _lines(shape) * LINE_BYTES // 4


def _lines(shape: Shape) -> int:
    """Return the number of cache lines of an array."""
    return -(-math.prod(shape) * 4 // LINE_BYTES)
