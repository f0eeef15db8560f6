"""The memory of a drafter, as terms of the memory formula of the model that it drafts for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.mebibytes import mib


@dataclass(frozen=True, slots=True)
class DrafterMemory:
    """The memory of a drafter, in bytes.

    `cache`: its KV cache, which has as many blocks as the target's; None: it has none.
    `buffer_bytes`: activations and logits of a step of the drafter.
    """

    weight_bytes: int = 0
    cache: CacheShape | None = None
    buffer_bytes: int = 0

    @property
    def cache_bytes(self) -> int:
        return 0 if self.cache is None else self.cache.size_bytes

    @property
    def size_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.buffer_bytes

    def terms(self) -> str:
        """Return the terms of the memory formula in MiB, each with a plus sign after it; ""
        without a drafter."""
        if not self.size_bytes:
            return ""
        return (
            f"{mib(self.weight_bytes)} weights of drafter + {mib(self.cache_bytes)} cache of"
            f" drafter + {mib(self.buffer_bytes)} buffers of drafter + "
        )


NO_DRAFTER: Final = DrafterMemory()
