"""The shape of the paged KV cache, whose layers may differ in size or have no cache."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from penstock.base.errors import ModelError
from penstock.models.decoder.mixer import CacheSize


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The shape of the KV cache.

    `blocks`: number of KV blocks.
    `block_size`: tokens per KV block.
    `layers`: the sizes of each layer; None for a layer without a cache.
    `item_bytes`: bytes per element.
    """

    blocks: int
    block_size: int
    layers: tuple[CacheSize | None, ...]
    item_bytes: int

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
    ) -> CacheShape:
        """Return the shape of a cache with `layers` equal layers, whose keys and values have
        `head_dim` elements."""
        sizes = (CacheSize(kv_heads, head_dim, head_dim),) * layers
        return cls(blocks, block_size, sizes, item_bytes)

    @property
    def size_bytes(self) -> int:
        """Size of the whole cache: B x P x (elements per token of all layers) x bytes per
        element."""
        per_token = sum(size.token_elements for size in self.layers if size is not None)
        return self.blocks * self.block_size * per_token * self.item_bytes

    @property
    def one_size(self) -> CacheSize:
        """The sizes of each layer. Raises ModelError unless all layers have the same."""
        first = self.layers[0] if self.layers else None
        if first is None or set(self.layers) != {first} or first.key_dim != first.value_dim:
            raise ModelError(
                "the layers of this model have KV caches of different sizes, which is not supported"
                " on this device"
            )
        return first

    def keys_shape(self, size: CacheSize) -> tuple[int, int, int, int]:
        """Return the shape of the keys of a layer: [B, K, D, P]. See `LayerCache`."""
        return self.blocks, size.kv_heads, size.key_dim, self.block_size

    def values_shape(self, size: CacheSize) -> tuple[int, int, int, int]:
        """Return the shape of the values of a layer: [B, K, P, D]. See `LayerCache`."""
        return self.blocks, size.kv_heads, self.block_size, size.value_dim

    def describe(self) -> str:
        """Return the factors of the size in words, for the memory formula."""
        counts = Counter(size for size in self.layers if size is not None)
        groups = [f"{count} layers x {_per_token(size)}" for size, count in counts.items()]
        layers = groups[0] if len(groups) == 1 else f"({' + '.join(groups) or 'no layers'})"
        return (
            f"{self.blocks} blocks x {self.block_size} tokens x {layers} x {self.item_bytes} bytes"
        )


def _per_token(size: CacheSize) -> str:
    if size.key_dim == size.value_dim:
        return f"2 x {size.kv_heads} heads x {size.key_dim}"
    return f"{size.kv_heads} heads x {size.key_dim + size.value_dim}"
