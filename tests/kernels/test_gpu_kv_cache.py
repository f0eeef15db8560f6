"""Layout of the cache on a GPU: the shapes of `LayerCache`, keys token by token in memory."""

from __future__ import annotations

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.gpu_kv_cache import (
    CacheExtents,
    allocate_caches,
    is_token_major,
    token_major,
)

_EXTENTS = CacheExtents(layers=3, blocks=5, kv_heads=2, block_size=16, dim=8)


def test_layers_are_windows_of_one_zeroed_pool():
    caches = allocate_caches(_EXTENTS, torch.bfloat16, "cpu")
    assert len(caches) == 3 and all(map(is_token_major, caches))
    assert {tuple(cache.keys.shape) for cache in caches} == {(5, 2, 8, 16)}
    assert {tuple(cache.values.shape) for cache in caches} == {(5, 2, 16, 8)}
    caches[1].keys.fill_(1)
    assert not any(cache.values.any() for cache in caches)
    assert (
        caches[1].keys.untyped_storage().data_ptr() == caches[2].keys.untyped_storage().data_ptr()
    )


def test_keys_of_a_head_and_block_are_contiguous():
    (cache, *_) = allocate_caches(_EXTENTS, torch.bfloat16, "cpu")
    piece = cache.keys[3, 1].transpose(0, 1)
    assert piece.is_contiguous() and piece.shape == (16, 8)


def test_8_bit_caches_have_a_scale_per_head():
    cache = allocate_caches(_EXTENTS, torch.float8_e4m3fn, "cpu")[0]
    assert cache.key_scales is not None and cache.value_scales is not None
    assert cache.key_scales.tolist() == [1, 1] and cache.key_scales is not cache.value_scales


def test_token_major_changes_only_the_strides():
    source = RandomInputs(0)
    plain = source.cache(source.step(((0, 20),), 16), 16, (2, 8), torch.float32)
    assert not is_token_major(plain)
    converted = token_major(plain)
    assert is_token_major(converted)
    assert torch.equal(converted.keys.nan_to_num(), plain.keys.nan_to_num())
    assert torch.equal(converted.values.nan_to_num(), plain.values.nan_to_num())
