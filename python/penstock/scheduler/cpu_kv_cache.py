"""Which prefixes have a copy in the host's memory, and what is to be copied there and back.

Blocks of the device that are about to be overwritten are saved, those used least recently make
room; a prefix that is found is brought back to blocks of the device. A copy stays where it is until
its place is needed. What is planned here the runtime carries out, in the order of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from penstock.scheduler.prefix_index import Key
from penstock.scheduler.types import CopyBlock


class CpuKvCacheIndex:
    """`num_blocks` blocks of the host, 0: there is no such cache. A step saves up to `most_saves`.

    `step`: the number of the one in the making. `last_restored`: the last one of which everything
    that it
    brought back is known to be there.
    """

    def __init__(self, num_blocks: int = 0, most_saves: int = 0) -> None:
        self.num_blocks = num_blocks
        self.step = 1
        self.last_restored = 0
        self.saved = 0
        self.restored = 0
        self._most_saves = most_saves
        self._block_of: dict[Key, int] = {}  # in the order of their last use
        self._free = list(range(num_blocks - 1, -1, -1))
        self._saves: list[CopyBlock] = []
        self._restores: list[CopyBlock] = []
        self._reading: set[int] = set()
        self._awaits = 0

    @property
    def num_used(self) -> int:
        return len(self._block_of)

    def count_known(self, keys: List[Key]) -> int:
        """How many of `keys`, from the first on, have a copy here."""
        count = 0
        while count < len(keys) and keys[count] in self._block_of:
            count += 1
        return count

    def save(self, key: Key, block: int) -> None:
        """`block` of the device, which holds the prefix `key`, is about to be overwritten."""
        if key in self._block_of:
            self._touch(key)
            return
        if len(self._saves) == self._most_saves:
            return
        place = self._place()
        if place is not None:
            self._block_of[key] = place
            self._saves.append(CopyBlock(block, place))
            self.saved += 1

    def read(self, keys: List[Key]) -> list[int]:
        """The host's blocks of prefixes that are known; nobody gets their places in this step."""
        for key in keys:
            self._touch(key)
        places = [self._block_of[key] for key in keys]
        self._reading.update(places)
        return places

    def restore(self, places: List[int], blocks: List[int]) -> int:
        """Copy what `places` hold to `blocks` of the device. Returns the step that does."""
        self._restores += [
            CopyBlock(block, place) for block, place in zip(blocks, places, strict=True)
        ]
        self.restored += len(blocks)
        return self.step

    def await_restores(self, step: int) -> None:
        """The next step waits for what `step` brings back: its blocks will be used."""
        self._awaits = max(self._awaits, step)

    def forget(self, key: Key) -> None:
        """The prefix `key` is not to be trusted."""
        place = self._block_of.pop(key, None)
        if place is not None:
            self._free.append(place)

    def take_plans(self) -> tuple[tuple[CopyBlock, ...], tuple[CopyBlock, ...], int]:
        """What the step in the making saves and brings back, and the step whose blocks it awaits;
        the next one begins."""
        plans = (tuple(self._saves), tuple(self._restores), self._awaits)
        self._saves, self._restores, self._awaits = [], [], 0
        self._reading.clear()
        self.step += 1
        return plans

    def _touch(self, key: Key) -> None:
        self._block_of[key] = self._block_of.pop(key)

    def _place(self) -> int | None:
        """A block of the host: a free one, or that of the copy used least recently."""
        if self._free:
            return self._free.pop()
        for key, place in self._block_of.items():
            if place not in self._reading:
                del self._block_of[key]
                return place
        return None
