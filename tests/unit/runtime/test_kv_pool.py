"""The cache's memory."""

from __future__ import annotations

import numpy as np

from penstock.runtime.kv_pool import LARGE_PAGE_BYTES, allocate_caches
from penstock.runtime.memory import CacheShape

SHAPE = CacheShape(blocks=5, block_tokens=16, layers=3, kv_heads=2, head_dim=8, item_bytes=2)


def test_each_layer_has_zeroed_keys_and_values_of_its_own() -> None:
    caches = allocate_caches(SHAPE)
    arrays = [array for cache in caches for array in (cache.keys, cache.values)]
    assert len(caches) == SHAPE.layers
    for index, array in enumerate(arrays):
        assert array.dtype == np.float16
        assert not array.any()  # nothing written so far reaches it
        array[...] = index + 1
    for index, array in enumerate(arrays):
        assert (array == index + 1).all()


def test_shapes_are_those_of_the_plan_and_its_formula_counts_all_bytes() -> None:
    caches = allocate_caches(SHAPE)
    assert {cache.keys.shape for cache in caches} == {SHAPE.keys_shape}
    assert {cache.values.shape for cache in caches} == {SHAPE.values_shape}
    assert sum(c.keys.nbytes + c.values.nbytes for c in caches) == SHAPE.size_bytes


def test_pools_start_at_large_pages() -> None:
    first = allocate_caches(SHAPE)[0]
    assert first.keys.ctypes.data % LARGE_PAGE_BYTES == 0
    assert first.values.ctypes.data % LARGE_PAGE_BYTES == 0
