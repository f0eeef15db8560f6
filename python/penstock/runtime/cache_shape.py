"""The shape of the paged KV cache, whose layers may differ in size or have no cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from penstock.models.decoder.mixer import CacheSize


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The shape of the KV cache.

    `blocks`: number of KV blocks.
    `block_size`: tokens per KV block.
    `layers`: the sizes of each layer; None for a layer without a cache.
    `item_bytes`: bytes per element.
    `shares_latents`: the values of latents are a view of their keys, as on a GPU.
    `scale_bytes`: bytes of the scale that each key and each value of a KV head has beside its
    elements; 0 without scales.
    """

    blocks: int
    block_size: int
    layers: tuple[CacheSize | None, ...]
    item_bytes: int
    shares_latents: bool = False
    scale_bytes: int = 0

    @classmethod
    def uniform(
        cls,
        *,
        blocks: int,
        block_size: int,
        layers: int,
        kv_heads: int,
        head_dim: int,
        item_bytes: int,
        scale_bytes: int = 0,
    ) -> CacheShape:
        """Return the shape of a cache with `layers` equal layers, whose keys and values have
        `head_dim` elements."""
        sizes = (CacheSize(kv_heads, head_dim, head_dim),) * layers
        return cls(blocks, block_size, sizes, item_bytes, scale_bytes=scale_bytes)

    @property
    def size_bytes(self) -> int:
        """Size of the whole cache: B x P x (bytes per token of all layers)."""
        per_token = sum(
            (self._elements(size) + 2 * size.kv_heads * self._scale_items) * self.item_bytes
            for size in self.layers
            if size is not None
        )
        return self.blocks * self.block_size * per_token

    def _elements(self, size: CacheSize) -> int:
        """Return the number of elements per token of a layer."""
        return size.shared_elements if self.shares_latents else size.token_elements

    def keys_shape(self, size: CacheSize) -> tuple[int, int, int, int]:
        """Return the shape of the keys of a layer: [B, K, D, P]. See `LayerCache`."""
        return self.blocks, size.kv_heads, size.key_dim + self._scale_items, self.block_size

    def values_shape(self, size: CacheSize) -> tuple[int, int, int, int]:
        """Return the shape of the values of a layer: [B, K, P, D]. See `LayerCache`."""
        return self.blocks, size.kv_heads, self.block_size, size.value_dim + self._scale_items

    @property
    def _scale_items(self) -> int:
        """The size of a scale in elements."""
        return self.scale_bytes // self.item_bytes

    def describe(self) -> str:
        """Return the factors of the size in words, for the memory formula."""
        counts = Counter(size for size in self.layers if size is not None)
        groups = [f"{count} layers x {self._per_token(size)}" for size, count in counts.items()]
        layers = groups[0] if len(groups) == 1 else f"({' + '.join(groups) or 'no layers'})"
        return (
            f"{self.blocks} blocks x {self.block_size} tokens x {layers} x {self.item_bytes} bytes"
        )

    def _per_token(self, size: CacheSize) -> str:
        halves = 2 if size.key_dim == size.value_dim else 1
        elements = self._elements(size) // size.kv_heads // halves
        scales = 2 * self._scale_items // halves
        per_head = f"({elements} + {scales} of scales)" if scales else f"{elements}"
        return f"{'2 x ' if halves == 2 else ''}{size.kv_heads} heads x {per_head}"
