"""The memory of a paged key-value cache on a CPU."""

from __future__ import annotations

import ctypes
import math
import mmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import LayerCache
from penstock.runtime.memory import CacheShape

LARGE_PAGE_BYTES: Final = 2 << 20
# How much memory beyond that in use is kept ready, 2,800 tokens of SmolLM2-135M; as much again as
# is in use, where that is more.
AHEAD_BYTES: Final = 64 << 20
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14


class KvCache:
    """Keys and values of all layers, zeroed: `caches`, one a layer, are windows of one pool of
    keys and one of values.

    A block's keys lie together for all layers, so that the memory in use grows with the blocks in
    use, and a long context is walked over few of the processor's page entries: the pools ask for
    large pages. The system gives a page as it is first written or prepared: a fifth of a
    millisecond on a bare machine, several on a virtual one whose host has to find it first.
    """

    def __init__(self, shape: CacheShape) -> None:
        dtype = np.float32 if shape.item_bytes == 4 else np.float16
        self._pools = [
            _Pool(shape, of_layer, dtype) for of_layer in (shape.keys_shape, shape.values_shape)
        ]
        keys, values = (pool.array for pool in self._pools)
        self.caches: list[LayerCache[Any]] = [
            LayerCache(keys[:, layer], values[:, layer]) for layer in range(shape.layers)
        ]

    def prepare(self, used_blocks: int) -> bool:
        """Have the system give one more page, where less is there beyond the first `used_blocks`
        blocks than is kept ready. False: it was not needed, or the system cannot."""
        return any(pool.prepare(used_blocks, AHEAD_BYTES // 2) for pool in self._pools)


class _Pool:
    """`array`: [B, L, *of_layer[1:]], aligned to a large page."""

    def __init__(
        self, shape: CacheShape, of_layer: tuple[int, ...], dtype: type[np.generic]
    ) -> None:
        blocks, *rest = of_layer
        self._size_bytes = math.prod(of_layer) * shape.layers * shape.item_bytes
        self._block_bytes = self._size_bytes // blocks
        # Private: shared memory gets large pages only where the machine was set up for that.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, self._size_bytes + LARGE_PAGE_BYTES, flags=private)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # a wish: where there are none, small pages serve
            memory.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(memory, np.uint8)
        start = -whole.ctypes.data % LARGE_PAGE_BYTES
        data = whole[start : start + self._size_bytes]
        self.array: npt.NDArray[Any] = data.view(dtype).reshape(blocks, shape.layers, *rest)
        self._ready_bytes = 0

    def prepare(self, used_blocks: int, least_bytes: int) -> bool:
        used = used_blocks * self._block_bytes
        wanted = min(used + max(used, least_bytes), self._size_bytes)
        begin = max(self._ready_bytes, used // LARGE_PAGE_BYTES * LARGE_PAGE_BYTES)
        if begin >= wanted:
            return False
        self._ready_bytes = begin + LARGE_PAGE_BYTES
        length = min(LARGE_PAGE_BYTES, self._size_bytes - begin)
        if _populate(self.array.ctypes.data + begin, length):
            return True
        self._ready_bytes = self._size_bytes  # ask no more
        return False


def _populate(address: int, length: int) -> bool:
    """Whether the system has given the pages of this memory, content unchanged. Releases the GIL;
    `mmap.madvise` does not."""
    libc = ctypes.CDLL(None)
    arguments = ctypes.c_void_p(address), ctypes.c_size_t(length)
    return int(libc.madvise(*arguments, _MADV_POPULATE_WRITE)) == 0
