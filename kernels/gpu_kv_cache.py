"""The paged KV cache on a GPU: memory layout and allocation.

Tensors have the shapes of `LayerCache`, keys [B, K, D, P] and values [B, K, P, D]; only the strides
differ from the layout on a CPU. Keys are stored token by token, like values. So the keys (and the
values) of one block and one KV head are P * D contiguous elements, which a kernel reads 16 bytes
per lane: 4 KiB for 16 tokens of 128 bfloat16. The references of the ops work with both layouts.

GPU kernels require the following; `token_major` returns a cache with these strides:

- keys.stride() == (block_stride, P * D, 1, D) and values.stride() == (block_stride, P * D, D, 1).
  block_stride is the number of elements from one block to the next, a multiple of 16.
- The memory is aligned to 16 bytes.
- The element type is bfloat16, float16, float32 or, with `key_scales` and `value_scales: [K]`
  float32, float8_e4m3fn. A number is then an element times the scale of its KV head.

A step may be padded to the fixed size of a CUDA graph. A token with a negative slot is not written
to the cache. Attention skips a row that has no tokens, or whose context is 0: its results are
undefined, but finite if the kernel writes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from penstock.kernels.step_inputs import LayerCache

ALIGNED_ELEMENTS = 16


@dataclass(frozen=True, slots=True)
class CacheExtents:
    """The sizes of a KV cache.

    `layers`: number of layers.
    `blocks`: KV blocks of each layer.
    `kv_heads`: KV heads of each layer.
    `block_size`: tokens of a KV block.
    `dim`: head dimension.
    """

    layers: int
    blocks: int
    kv_heads: int
    block_size: int
    dim: int


def allocate_pool(extents: CacheExtents, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Allocate the KV caches of all layers as one zeroed tensor [L, 2, B, K, P, D]: per layer the
    keys, then the values.

    The blocks of a layer are contiguous, so that a step touches few memory pages of the GPU at a
    time.
    """
    block = (extents.kv_heads, extents.block_size, extents.dim)
    return torch.zeros(extents.layers, 2, extents.blocks, *block, dtype=dtype, device=device)


def caches_of(pool: torch.Tensor) -> list[LayerCache[torch.Tensor]]:
    """Return the KV cache of each layer as views of `pool`. For float8_e4m3fn, the scales are 1
    until they are set in place."""
    return [_window(keys, values) for keys, values in pool.unbind(0)]


def allocate_caches(
    extents: CacheExtents, dtype: torch.dtype, device: str
) -> list[LayerCache[torch.Tensor]]:
    """Allocate a pool and return the KV cache of each layer in it."""
    return caches_of(allocate_pool(extents, dtype, device))


def token_major(cache: LayerCache[torch.Tensor]) -> LayerCache[torch.Tensor]:
    """Return a copy of the cache in the GPU layout, with keys stored token by token."""
    keys = cache.keys.transpose(2, 3).contiguous().transpose(2, 3)
    return LayerCache(keys, cache.values.contiguous(), cache.key_scales, cache.value_scales)


def is_token_major(cache: LayerCache[torch.Tensor]) -> bool:
    """Return whether the cache has the strides that GPU kernels require."""
    block_size, dim = cache.values.shape[2:]
    panel = block_size * dim
    (of_keys, *keys), (of_values, *values) = cache.keys.stride(), cache.values.stride()
    return (
        keys == [panel, 1, dim]
        and values == [panel, dim, 1]
        and of_keys % ALIGNED_ELEMENTS == of_values % ALIGNED_ELEMENTS == 0
    )


def allocate_latent_cache(
    blocks: int, block_size: int, latent: int, rotated: int, dtype: torch.dtype, device: str
) -> LayerCache[torch.Tensor]:
    """Allocate the zeroed cache of one layer with latent attention (`kernels.latent_ops`). Values
    are a view of keys: the first `latent` elements of each."""
    keys = torch.zeros(blocks, 1, block_size, latent + rotated, dtype=dtype, device=device)
    return latent_cache_of(keys, latent)


def latent_cache_of(pool: torch.Tensor, latent: int) -> LayerCache[torch.Tensor]:
    """Return the latent cache in `pool` [B, 1, P, latent + rotated], whose blocks may be apart."""
    return LayerCache(pool.transpose(2, 3), pool[..., :latent])


def is_latent_cache(cache: LayerCache[torch.Tensor]) -> bool:
    """Return whether the cache has the strides that GPU kernels of latent attention require: keys
    token by token, and values either likewise or a view of the keys. The kernels read only keys."""
    width, latent = cache.keys.shape[2], cache.values.shape[3]
    (of_keys, *keys), (of_values, *values) = cache.keys.stride(), cache.values.stride()
    row = width if cache.values.data_ptr() == cache.keys.data_ptr() else latent
    return (
        cache.key_scales is None
        and keys[1:] == [1, width]
        and values[1:] == [row, 1]
        and of_keys % ALIGNED_ELEMENTS == of_values % ALIGNED_ELEMENTS == 0
    )


def _window(keys: torch.Tensor, values: torch.Tensor) -> LayerCache[torch.Tensor]:
    if keys.dtype != torch.float8_e4m3fn:
        return LayerCache(keys.transpose(2, 3), values)
    ones = [torch.ones(keys.shape[1], device=keys.device) for _ in range(2)]
    return LayerCache(keys.transpose(2, 3), values, *ones)
