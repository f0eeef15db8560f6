"""Holds the keys and values of the windows that rows attend to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import LayerCache, StepInputs
from penstock.models.whisper.spec import WhisperSpec
from penstock.runtime.cpu.kv_cache import KvCache

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class WindowCache:
    """A place for the keys and values of a window per row. Rows with the same window share a place,
    and a window stays until its place is needed, so that repeated decoding of a window projects it
    once.

    - `cache`: has room for `max_rows` windows.
    """

    def __init__(self, cache: KvCache, max_rows: int, spec: WhisperSpec) -> None:
        self._cache = cache
        self._spec = spec
        blocks = cache.caches[0].keys.shape[0] // max_rows
        self._tables = np.arange(max_rows * blocks, dtype=np.int32).reshape(max_rows, blocks)
        self._places: OrderedDict[bytes, int] = (
            OrderedDict()
        )  # digest -> place, longest unused first
        self._free = list(range(max_rows))
        self._held: dict[int, bytes] = {}  # row -> digest
        self._lengths = np.zeros(max_rows, np.int32)

    @property
    def caches(self) -> Sequence[LayerCache[Any]]:
        """The keys and values, one cache per layer."""
        return self._cache.caches

    def admit(self, row: int, digest: bytes, project: Callable[[bytes, int], Floats]) -> None:
        """Give a window to a row. `project(digest, layer)`: returns the keys and values of the
        window for a layer, [N, 2 W]; called if the window is not in the cache."""
        self.release(row)
        if digest not in self._places:
            place = self._take_place()
            for layer in range(self._spec.layers):
                self._write(place, layer, project(digest, layer))
            self._places[digest] = place
        self._places.move_to_end(digest)
        self._held[row] = digest

    def release(self, row: int) -> None:
        """Take the window from a row, if it has one."""
        self._held.pop(row, None)

    def inputs(self, rows: Sequence[int], step: StepInputs[Ints]) -> StepInputs[Ints]:
        """Return the inputs of cross-attention for the `rows` of a step, in the order of its
        chunks."""
        places = [self._places[self._held[row]] for row in rows]
        tables = np.ascontiguousarray(self._tables[places])
        return replace(step, context_lens=self._lengths[places], block_tables=tables)

    def _take_place(self) -> int:
        """Return a free place, or the one of the window that has been unused for longest."""
        if self._free:
            return self._free.pop()
        held = set(self._held.values())
        unused = next(digest for digest in self._places if digest not in held)
        return self._places.pop(unused)

    def _write(self, place: int, layer: int, projected: Floats) -> None:
        """Write keys and values [N, 2 W] to the blocks of a place."""
        cache, spec = self.caches[layer], self._spec
        count, size = len(projected), cache.keys.shape[-1]
        blocks = -(-count // size)
        self._lengths[place] = count
        padded = np.zeros((blocks * size, 2, spec.heads, spec.head_dim), np.float32)
        padded[:count] = projected.reshape(count, 2, spec.heads, spec.head_dim)
        parts = padded.reshape(blocks, size, 2, spec.heads, spec.head_dim)
        at = self._tables[place, :blocks]
        cache.keys[at] = parts[:, :, 0].transpose(0, 2, 3, 1)
        cache.values[at] = parts[:, :, 1].transpose(0, 2, 1, 3)
