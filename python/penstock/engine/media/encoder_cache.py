"""The cache of encoded media: which encoded items stay in memory, within a byte budget."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

from penstock.models.towers.tower import EncodedMedia
from penstock.runtime.media import RuntimeMedia


class EncoderCache:
    """Keeps encoded items, by digest, up to `max_bytes`.

    Requests hold the items that they use. Items that no request holds are evicted in the order of
    their last use. Held items are never evicted, and may exceed the budget if an item turns out
    larger than expected.
    """

    def __init__(self, media: RuntimeMedia, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._media = media
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._rows: dict[bytes, int] = {}
        self._holders: Counter[bytes] = Counter()

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._sizes

    @property
    def held_bytes(self) -> int:
        """Bytes of the items that requests hold."""
        return sum(self._sizes[digest] for digest in self._holders)

    def num_rows(self, digest: bytes) -> int | None:
        """Return the number of rows of an item, or None if the cache does not have it."""
        return self._rows.get(digest)

    def hold(self, digests: Iterable[bytes]) -> None:
        """Hold items that the cache has."""
        for digest in digests:
            assert digest in self._sizes, "an item that is not encoded cannot be held"
            self._holders[digest] += 1

    def release(self, digests: Iterable[bytes]) -> None:
        """Let go of items that `hold` held."""
        for digest in digests:
            self._holders[digest] -= 1
            if not self._holders[digest]:
                del self._holders[digest]
                self._sizes.move_to_end(digest)
        self._evict(0)

    def add(self, digest: bytes, encoded: EncodedMedia[Any]) -> None:
        """Add an item that the cache does not have, after evicting others to make room."""
        size = sum(int(tensor.nbytes) for tensor in (encoded.rows, *encoded.deep))
        self._evict(size)
        self._media.keep(digest, encoded)
        self._sizes[digest] = size
        self._rows[digest] = len(encoded.rows)
        self.size_bytes += size

    def _evict(self, needed: int) -> None:
        """Evict items that no request holds, until `needed` more bytes fit."""
        free = [digest for digest in self._sizes if digest not in self._holders]
        for digest in free:
            if self.size_bytes + needed <= self.max_bytes:
                return
            self.size_bytes -= self._sizes.pop(digest)
            del self._rows[digest]
            self._media.drop(digest)
