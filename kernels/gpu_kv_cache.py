"""The paged cache on a GPU: memory layout and allocation.

Tensors keep the meaning and the shapes of `LayerCache`, keys [B, K, D, P] and values [B, K, P, D];
only the strides differ. Keys are stored token by token like values, so that the keys (and the
values) of one block and one KV head are P * D contiguous elements, which a kernel reads 16 bytes
per lane: 4 KiB for 16 tokens of 128 bfloat16. So the references of the ops hold for either layout.

Kernels on a GPU rely on (`token_major`): keys.stride() == (S, P * D, 1, D) and values.stride() ==
(S, P * D, D, 1), where S, the elements from a block to the next, is a multiple of 16; memory
aligned to 16 bytes. Element types: bfloat16, float16, float32; and float8_e4m3fn with `key_scales`
and `value_scales: [K]` float32: the value is an element times the scale of its head.

Padding of a step to the fixed size of a captured graph: a token with a negative slot is not written
to the cache; a row whose context is 0, or that has no tokens, is not attended to (its results are
undefined, and finite if the kernel writes them).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from penstock.kernels.ops_interface import LayerCache

ALIGNED_ELEMENTS = 16


@dataclass(frozen=True, slots=True)
class CacheExtents:
    """Sizes of a cache: `blocks` blocks of `block_size` tokens for each of `layers` layers of [K,
    D] heads."""

    layers: int
    blocks: int
    kv_heads: int
    block_size: int
    dim: int


def allocate_pool(extents: CacheExtents, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Allocate the caches of all layers: [L, 2, B, K, P, D], zeroed.

    The blocks of a layer are contiguous, so that a step touches few of the GPU's page entries at a
    time.
    """
    block = (extents.kv_heads, extents.block_size, extents.dim)
    return torch.zeros(extents.layers, 2, extents.blocks, *block, dtype=dtype, device=device)


def caches_of(pool: torch.Tensor) -> list[LayerCache[torch.Tensor]]:
    """Return the cache of each layer: windows of `pool`. For float8_e4m3fn the scales are 1 until
    they are set in place."""
    return [_window(keys, values) for keys, values in pool.unbind(0)]


def allocate_caches(
    extents: CacheExtents, dtype: torch.dtype, device: str
) -> list[LayerCache[torch.Tensor]]:
    """Allocate a pool and return the caches in it."""
    return caches_of(allocate_pool(extents, dtype, device))


def token_major(cache: LayerCache[torch.Tensor]) -> LayerCache[torch.Tensor]:
    """Return a copy of the cache with keys token by token."""
    keys = cache.keys.transpose(2, 3).contiguous().transpose(2, 3)
    return LayerCache(keys, cache.values.contiguous(), cache.key_scales, cache.value_scales)


def is_token_major(cache: LayerCache[torch.Tensor]) -> bool:
    """Return whether the cache has the layout that kernels on a GPU read."""
    block_size, dim = cache.values.shape[2:]
    panel = block_size * dim
    (of_keys, *keys), (of_values, *values) = cache.keys.stride(), cache.values.stride()
    return (
        keys == [panel, 1, dim]
        and values == [panel, dim, 1]
        and of_keys % ALIGNED_ELEMENTS == of_values % ALIGNED_ELEMENTS == 0
    )


def _window(keys: torch.Tensor, values: torch.Tensor) -> LayerCache[torch.Tensor]:
    if keys.dtype != torch.float8_e4m3fn:
        return LayerCache(keys.transpose(2, 3), values)
    ones = [torch.ones(keys.shape[1], device=keys.device) for _ in range(2)]
    return LayerCache(keys.transpose(2, 3), values, *ones)
