"""The index of the CPU KV cache: which prefixes it holds, and which blocks to copy to and from it.

Device blocks that are about to be overwritten are saved to CPU blocks; the least recently used CPU
blocks are overwritten. If a prefix is found again, its CPU blocks are copied back to device blocks
and stay valid until they are overwritten. The index only plans copies. The runtime executes them in
the order of the steps.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from penstock.scheduler.prefix_index import Key
from penstock.scheduler.types import CopyBlock


class CpuKvCacheIndex:
    """A least-recently-used index of `num_blocks` CPU blocks; 0 disables the cache.

    `max_saves_per_step`: most blocks that one step saves.
    `step`: number of the step that is being planned.
    `last_restored`: the last step whose restores are known to be complete.
    """

    def __init__(self, num_blocks: int = 0, max_saves_per_step: int = 0) -> None:
        self.num_blocks = num_blocks
        self.step = 1
        self.last_restored = 0
        self.saved = 0
        self.restored = 0
        self._max_saves = max_saves_per_step
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
        """Return the number of leading `keys` that the cache holds."""
        count = 0
        while count < len(keys) and keys[count] in self._block_of:
            count += 1
        return count

    def save(self, key: Key, block: int) -> None:
        """Plan to save the device `block`, which is about to be overwritten, under its prefix
        `key`. Do nothing if the step cannot save another block."""
        if key in self._block_of:
            self._touch(key)
            return
        if len(self._saves) == self._max_saves:
            return
        place = self._place()
        if place is not None:
            self._block_of[key] = place
            self._saves.append(CopyBlock(block, place))
            self.saved += 1

    def read(self, keys: List[Key]) -> list[int]:
        """Return the CPU blocks of the prefixes `keys`, all of which the cache must hold. These
        blocks are not overwritten during this step."""
        for key in keys:
            self._touch(key)
        places = [self._block_of[key] for key in keys]
        self._reading.update(places)
        return places

    def restore(self, places: List[int], blocks: List[int]) -> int:
        """Plan to copy the CPU blocks `places` to the device `blocks`. Return the number of the
        step that copies them."""
        self._restores += [
            CopyBlock(block, place) for block, place in zip(blocks, places, strict=True)
        ]
        self.restored += len(blocks)
        return self.step

    def await_restores(self, step: int) -> None:
        """Make the step being planned wait until the restores of `step` are complete."""
        self._awaits = max(self._awaits, step)

    def forget(self, key: Key) -> None:
        """Free the CPU block of the prefix `key`, because its content is wrong."""
        place = self._block_of.pop(key, None)
        if place is not None:
            self._free.append(place)

    def take_plans(self) -> tuple[tuple[CopyBlock, ...], tuple[CopyBlock, ...], int]:
        """Return the saves of the step being planned, its restores, and the step whose restores it
        must wait for. Then start planning the next step."""
        plans = (tuple(self._saves), tuple(self._restores), self._awaits)
        self._saves, self._restores, self._awaits = [], [], 0
        self._reading.clear()
        self.step += 1
        return plans

    def _touch(self, key: Key) -> None:
        self._block_of[key] = self._block_of.pop(key)

    def _place(self) -> int | None:
        """Allocate a CPU block: a free one, or else the least recently used one that is not being
        read. Return None if there is none."""
        if self._free:
            return self._free.pop()
        for key, place in self._block_of.items():
            if place not in self._reading:
                del self._block_of[key]
                return place
        return None
