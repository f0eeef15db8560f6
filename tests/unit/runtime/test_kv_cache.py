"""The memory of the CPU's KV cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from penstock.models.decoder.mixer import CacheSize
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.cpu.kv_cache import AHEAD_BYTES, LARGE_PAGE_BYTES, KvCache

SHAPE = CacheShape.uniform(blocks=5, block_size=16, layers=3, kv_heads=2, head_dim=8, item_bytes=2)
# A block is half a large page of keys and as much of values.
LARGE = CacheShape.uniform(
    blocks=400, block_size=64, layers=4, kv_heads=16, head_dim=128, item_bytes=2
)
PAGES_AHEAD = AHEAD_BYTES // LARGE_PAGE_BYTES


def test_each_layer_has_separate_zeroed_keys_and_values() -> None:
    caches = KvCache(SHAPE).caches
    arrays = [array for cache in caches for array in (cache.keys, cache.values)]
    assert len(caches) == len(SHAPE.layers)
    for index, array in enumerate(arrays):
        assert array.dtype == np.float16
        assert not array.any()  # not touched by the writes so far
        array[...] = index + 1
    for index, array in enumerate(arrays):
        assert (array == index + 1).all()


def test_shapes_match_the_plan_and_its_formula_counts_all_bytes() -> None:
    caches = KvCache(SHAPE).caches
    (size,) = {size for size in SHAPE.layers if size is not None}
    assert {cache.keys.shape for cache in caches} == {SHAPE.keys_shape(size)}
    assert {cache.values.shape for cache in caches} == {SHAPE.values_shape(size)}
    assert sum(c.keys.nbytes + c.values.nbytes for c in caches) == SHAPE.size_bytes


def test_an_int8_cache_has_scales_beside_its_elements_that_the_formula_counts() -> None:
    layers = (CacheSize(2, 8, 8), None, CacheSize(1, 24, 16))
    shape = CacheShape(5, 16, layers, 1, scale_bytes=4)
    arrays = [array for one in KvCache(shape).present for array in (one.keys, one.values)]
    assert {array.dtype for array in arrays} == {np.dtype(np.int8)}
    shapes = [(5, 2, 12, 16), (5, 2, 16, 12), (5, 1, 28, 16), (5, 1, 16, 20)]
    assert [array.shape for array in arrays] == shapes
    assert sum(array.nbytes for array in arrays) == shape.size_bytes
    assert shape.size_bytes == 5 * 16 * (2 * 2 * (8 + 4) + (40 + 8))
    terms = "(1 layers x 2 x 2 heads x (8 + 4 of scales) + 1 layers x 1 heads x (40 + 8 of scales))"
    assert shape.describe() == f"5 blocks x 16 tokens x {terms} x 1 bytes"


def test_pools_start_at_large_pages() -> None:
    first = KvCache(SHAPE).caches[0]
    assert first.keys.ctypes.data % LARGE_PAGE_BYTES == 0
    assert first.values.ctypes.data % LARGE_PAGE_BYTES == 0


def test_memory_is_prepared_page_by_page_up_to_a_limit_ahead_of_use() -> None:
    pool = KvCache(LARGE)
    before = resident_bytes()
    assert pool.prepare(0)
    assert 0 < resident_bytes() - before < 2 * LARGE_PAGE_BYTES
    assert prepared_pages(pool, 0) == PAGES_AHEAD - 1
    assert resident_bytes() - before > 0.9 * AHEAD_BYTES
    assert prepared_pages(pool, 0) == 0
    assert prepared_pages(pool, 4) == 4  # two pages of keys and two of values are in use now
    assert not any(cache.keys.any() or cache.values.any() for cache in pool.caches)


def test_as_much_again_as_is_in_use_is_prepared() -> None:
    pool = KvCache(LARGE)
    assert prepared_pages(pool, LARGE.blocks // 4) == LARGE.blocks // 4


def test_pages_in_use_are_not_prepared() -> None:
    pool = KvCache(LARGE)
    assert (
        prepared_pages(pool, LARGE.blocks - 2) == 2
    )  # the last page of keys and the last of values
    assert prepared_pages(pool, LARGE.blocks) == 0


def test_preparing_keeps_the_content() -> None:
    pool = KvCache(SHAPE)
    pool.caches[1].keys[...] = 3.0
    assert prepared_pages(pool, 0) == 2  # each less than a page
    assert (pool.caches[1].keys == 3.0).all()


def prepared_pages(pool: KvCache, used_blocks: int) -> int:
    count = 0
    while pool.prepare(used_blocks):
        count += 1
    return count


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_layers_may_differ_in_size_or_have_no_cache() -> None:
    layers = (CacheSize(2, 8, 8), None, CacheSize(1, 24, 16), CacheSize(4, 8, 0))
    shape = CacheShape(5, 16, layers, 2)
    cache = KvCache(shape)
    assert [layer is None for layer in cache.caches] == [False, True, False, False]
    assert [layer.keys.shape for layer in cache.present] == [
        (5, 2, 8, 16),
        (5, 1, 24, 16),
        (5, 4, 8, 16),
    ]
    assert [layer.values.shape for layer in cache.present] == [
        (5, 2, 16, 8),
        (5, 1, 16, 16),
        (5, 4, 16, 0),
    ]
    arrays = [array for layer in cache.present for array in (layer.keys, layer.values)]
    assert sum(array.nbytes for array in arrays) == shape.size_bytes
    for index, array in enumerate(arrays):
        assert not array.any()
        array[...] = index + 1
    for index, array in enumerate(arrays):
        assert (array == index + 1).all()
    keys = [layer.keys for layer in cache.present]
    assert {array.strides[0] for array in keys} == {2 * 16 * (16 + 24 + 32)}
    assert keys[1].ctypes.data - keys[0].ctypes.data == keys[0][0].nbytes


def test_values_of_latents_are_counted_where_they_are_stored() -> None:
    layers = (CacheSize(2, 8, 8), CacheSize(1, 24, 16, latent=True))
    apart = CacheShape(5, 16, layers, 2)
    assert apart.size_bytes == 5 * 16 * (2 * 2 * 8 + 24 + 16) * 2
    assert dataclasses.replace(apart, shares_latents=True).size_bytes == 5 * 16 * (32 + 24) * 2


def test_memory_formula_names_each_size_of_layer() -> None:
    sizes = (CacheSize(8, 256, 256),) * 5 + (CacheSize(1, 576, 0), None)
    described = CacheShape(10, 16, sizes, 2).describe()
    layers_and_heads = "(5 layers x 2 x 8 heads x 256 + 1 layers x 1 heads x 576)"
    assert described == f"10 blocks x 16 tokens x {layers_and_heads} x 2 bytes"
