"""The paged KV caches of a model on a device: one tensor per size of cache, for all layers with
this size."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from penstock.base.errors import ModelError
from penstock.kernels.gpu_kv_cache import CacheExtents, allocate_pool, caches_of, latent_cache_of
from penstock.kernels.step_inputs import LayerCache
from penstock.models.decoder.mixer import CacheSize
from penstock.quant.safetensors.cache_scales import Scales
from penstock.runtime.cache_shape import CacheShape


class KvPools:
    """The zeroed KV caches of all layers.

    `caches`: one per layer, a view of the pool of its size; None for a layer without a cache.
    `blocks`: one view per pool, [B, ...] int32, with all bytes of each KV block.

    Raises ModelError if the keys and the values of a layer have sizes that kernels do not support.
    """

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: str) -> None:
        self._pools: list[torch.Tensor] = []
        self.blocks: list[torch.Tensor] = []
        views: dict[CacheSize, Iterator[LayerCache[torch.Tensor]]] = {}
        for index, size in enumerate(shape.layers):
            if size is not None and size not in views:
                views[size] = self._allocate(shape, size, index, dtype, device)
        self.caches: list[LayerCache[torch.Tensor] | None] = [
            None if size is None else next(views[size]) for size in shape.layers
        ]

    @property
    def present(self) -> list[LayerCache[torch.Tensor]]:
        """The caches of the layers that have one."""
        return [cache for cache in self.caches if cache is not None]

    @property
    def size_bytes(self) -> int:
        return sum(pool.nbytes for pool in self._pools)

    def set_scales(self, scales: Scales, rank: int = 0, count: int = 1) -> int:
        """Set the calibrated scales of a cache of 8-bit floats, of the whole model, for the KV
        heads of rank `rank` of `count`. Returns the number of layers that got scales. Raises
        ModelError if a layer has another number of scales than 1 or its KV heads."""
        changed = set()
        for (layer, part), values in scales.items():
            cache = self.caches[layer] if layer < len(self.caches) else None
            own = None if cache is None else cache.key_scales if part == "k" else cache.value_scales
            if own is None:  # the layer has no cache of its own
                continue
            heads, size = own.numel(), len(values)
            if size not in (1, heads * count) and not (heads == 1 and count % size == 0):
                raise ModelError(
                    f"layer {layer} has {size} scales {part}_scale; it must have 1 or one per KV"
                    f" head, {heads * count}"
                )
            first = 0 if size == 1 else rank * size // count
            own.copy_(torch.from_numpy(values[first : first + heads].copy()))
            changed.add(layer)
        return len(changed)

    def fill(self, value: float) -> None:
        """Overwrite all caches, in tests."""
        for pool in self._pools:
            pool.fill_(value)

    def _allocate(
        self, shape: CacheShape, size: CacheSize, index: int, dtype: torch.dtype, device: str
    ) -> Iterator[LayerCache[torch.Tensor]]:
        """Allocate the pool of one size, and return the cache of each layer in it. `index`: a layer
        that has this size."""
        layers = shape.layers.count(size)
        if size.latent:
            extents = (layers, shape.blocks, size.kv_heads, shape.block_size, size.key_dim)
            pool = torch.zeros(extents, dtype=dtype, device=device)
            self._pools.append(pool)
            self.blocks.append(_as_words(pool).transpose(0, 1))
            return (latent_cache_of(part, size.value_dim) for part in pool.unbind(0))
        if size.key_dim != size.value_dim:
            raise ModelError(
                f"layer {index}: keys of {size.key_dim} and values of {size.value_dim} elements are"
                " not supported on a GPU"
            )
        pool = allocate_pool(
            CacheExtents(layers, shape.blocks, size.kv_heads, shape.block_size, size.key_dim),
            dtype,
            device,
        )
        self._pools.append(pool)
        self.blocks.append(_as_words(pool).movedim(2, 0))
        return iter(caches_of(pool))


def _as_words(pool: torch.Tensor) -> torch.Tensor:
    return pool.view(torch.int32)
