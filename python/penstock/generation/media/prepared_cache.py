"""A cache of prepared media, since each turn of a chat sends the earlier images again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from penstock.models.media.prepared import PreparedMedia


@dataclass(frozen=True, slots=True)
class LoadedItem:
    """A prepared item. `digest`: `media.digest()`, which is expensive to compute."""

    media: PreparedMedia
    digest: bytes


class PreparedCache:
    """Keeps the items that were used last, up to `max_bytes` of prepared data."""

    def __init__(self, max_bytes: int) -> None:
        self._left_bytes = max_bytes
        self._items: OrderedDict[bytes, LoadedItem] = OrderedDict()

    def get(self, key: bytes) -> LoadedItem | None:
        """Return the item with a key, None if it is not in the cache."""
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: bytes, item: LoadedItem) -> None:
        """Add an item. Items that were not used for the longest time make room for it."""
        if key in self._items:
            return
        self._items[key] = item
        self._left_bytes -= len(item.media.data)
        while self._left_bytes < 0:
            _, oldest = self._items.popitem(last=False)
            self._left_bytes += len(oldest.media.data)
