"""The memory of a paged key-value cache on a CPU."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.table import LayerCache
from penstock.runtime.memory import CacheShape

LARGE_PAGE_BYTES = 2 << 20


def allocate_caches(shape: CacheShape) -> list[LayerCache[Any]]:
    """A cache for each layer, zeroed: windows of one pool of keys and one of values.

    A block's keys lie together for all layers, so that the memory in use grows with the blocks in
    use, and a long context is walked over few of the processor's page entries: the pools ask for
    large pages. The system gives memory as it is first written.
    """
    dtype = np.float32 if shape.item_bytes == 4 else np.float16
    keys = _pool(shape, shape.keys_shape, dtype)
    values = _pool(shape, shape.values_shape, dtype)
    return [LayerCache(keys[:, layer], values[:, layer]) for layer in range(shape.layers)]


def _pool(
    shape: CacheShape, of_layer: tuple[int, ...], dtype: type[np.generic]
) -> npt.NDArray[Any]:
    """[B, L, *of_layer[1:]], aligned to a large page."""
    blocks, *rest = of_layer
    size_bytes = math.prod(of_layer) * shape.layers * shape.item_bytes
    # Private: shared memory gets large pages only where the machine was set up for that.
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size_bytes + LARGE_PAGE_BYTES, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # a wish: where there are none, small pages serve
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % LARGE_PAGE_BYTES
    return whole[start : start + size_bytes].view(dtype).reshape(blocks, shape.layers, *rest)
