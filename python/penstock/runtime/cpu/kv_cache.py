"""Allocates the memory of the paged KV cache on a CPU."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.step_inputs import LayerCache
from penstock.runtime.cache_shape import CacheShape

LARGE_PAGE_BYTES: Final = 2 << 20
# Memory to allocate beyond the memory in use: at least this much (2,800 tokens of SmolLM2-135M), or
# as much as is in use if that is more.
AHEAD_BYTES: Final = 64 << 20
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14
_ELEMENTS: Final[dict[int, type[np.generic]]] = {1: np.int8, 2: np.float16, 4: np.float32}


class KvCache:
    """The zeroed keys and values of all layers. `caches`: one view per layer of the pool of keys
    and the pool of values; None for a layer without a cache.

    The keys of a block are adjacent for all layers, so that the memory in use grows with the blocks
    in use. The pools ask for large pages, so that a long context touches few page table entries.
    The operating system allocates a page when it is first written or prepared. That takes a fifth
    of a millisecond on a bare machine, and several on a virtual one whose hypervisor has to find
    the page first.
    """

    def __init__(self, shape: CacheShape) -> None:
        dtype = _ELEMENTS[shape.item_bytes]
        sizes = [size for size in shape.layers if size is not None]
        keys = _Pool([shape.keys_shape(size) for size in sizes], shape.blocks, dtype)
        values = _Pool([shape.values_shape(size) for size in sizes], shape.blocks, dtype)
        self._pools = [keys, values]
        pairs = zip(keys.arrays, values.arrays, strict=True)
        self.caches: list[LayerCache[Any] | None] = [
            None if size is None else LayerCache(*next(pairs)) for size in shape.layers
        ]

    @property
    def present(self) -> list[LayerCache[Any]]:
        """The caches of the layers that have one."""
        return [cache for cache in self.caches if cache is not None]

    def prepare(self, used_blocks: int) -> bool:
        """Allocate one more page if less than `AHEAD_BYTES` of memory is allocated beyond the first
        `used_blocks` blocks. Return False if no page is needed, or the system does not support
        this."""
        return any(pool.prepare(used_blocks, AHEAD_BYTES // 2) for pool in self._pools)


class _Pool:
    """The keys or the values of all layers. `arrays`: one view per layer, with these `shapes`,
    which start with the number of `blocks`. The first is aligned to a large page."""

    def __init__(
        self, shapes: Sequence[tuple[int, ...]], blocks: int, dtype: type[np.generic]
    ) -> None:
        widths = [math.prod(shape[1:]) for shape in shapes]
        self._block_bytes = sum(widths) * np.dtype(dtype).itemsize
        self._size_bytes = blocks * self._block_bytes
        # Private: shared memory gets large pages only on machines set up for it.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, self._size_bytes + LARGE_PAGE_BYTES, flags=private)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # a hint: without large pages, small ones are used
            memory.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(memory, np.uint8)
        start = -whole.ctypes.data % LARGE_PAGE_BYTES
        self._address = whole.ctypes.data + start
        pool = whole[start : start + self._size_bytes].view(dtype).reshape(blocks, sum(widths))
        ends = list(accumulate(widths))
        self.arrays: list[npt.NDArray[Any]] = [
            pool[:, end - width : end].reshape(shape)
            for shape, width, end in zip(shapes, widths, ends, strict=True)
        ]
        self._ready_bytes = 0

    def prepare(self, used_blocks: int, least_bytes: int) -> bool:
        used = used_blocks * self._block_bytes
        wanted = min(used + max(used, least_bytes), self._size_bytes)
        begin = max(self._ready_bytes, used // LARGE_PAGE_BYTES * LARGE_PAGE_BYTES)
        if begin >= wanted:
            return False
        self._ready_bytes = begin + LARGE_PAGE_BYTES
        length = min(LARGE_PAGE_BYTES, self._size_bytes - begin)
        if _populate(self._address + begin, length):
            return True
        self._ready_bytes = self._size_bytes  # do not try again
        return False


def _populate(address: int, length: int) -> bool:
    """Allocate the pages of the memory at `address` without changing their content. Return whether
    that succeeded. Releases the GIL, unlike `mmap.madvise`."""
    libc = ctypes.CDLL(None)
    arguments = ctypes.c_void_p(address), ctypes.c_size_t(length)
    return int(libc.madvise(*arguments, _MADV_POPULATE_WRITE)) == 0
