"""The snapshots of recurrent states: which prefixes they contain, and which slot gets the next one.

A snapshot is the state of all recurrent layers after a prefix that ends with a KV block. It has the
key of that block. A slot is free, being saved by a step in flight, or published. A published slot
is reused if it is the least recently used one and no chunk reads it.

Two kinds of snapshots are saved. *Lasting* ones are at positions where further requests are likely
to continue: the end of a prompt and the places where prompts branch. *Passing* ones follow a
sequence while it is computed; they fill at most half of the slots, so that many long answers do not
drive out the lasting ones. A passing snapshot that is restored becomes a lasting one.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List
from typing import Final

from penstock.scheduler.prefix_index import Key
from penstock.scheduler.sequence import Sequence

KEPT_ROLLING: Final = 2
"""Snapshots that a decoding sequence keeps. If it is preempted, its last block is overwritten
first, and the snapshot after that block is lost."""


class StateSnapshots:
    """A least-recently-used index of `num_slots` snapshots, at least 1.

    `saves`, `restores`: snapshots published, and chunks that started from one.
    `evictions`: published snapshots that another sequence overwrote, or whose block was.
    """

    def __init__(self, num_slots: int) -> None:
        assert num_slots > 0
        self.num_slots = num_slots
        self.saves = 0
        self.restores = 0
        self.evictions = 0
        self._slot_of: dict[Key, int] = {}  # published, in the order of their last use
        self._key_of: dict[int, Key] = {}
        self._free = list(range(num_slots - 1, -1, -1))
        self._readers = [0] * num_slots
        self._saving: set[int] = set()
        self._passing: dict[int, int] = {}  # the arrival number of the sequence that saved it
        self._promised: dict[Key, Sequence] = {}

    @property
    def num_used(self) -> int:
        return self.num_slots - len(self._free)

    def holds(self, key: Key) -> bool:
        """Return whether the state after the prefix `key` is published."""
        return key in self._slot_of

    def longest(self, keys: List[Key], most: int) -> int:
        """Return the largest number of blocks, `most` at most, after which there is a snapshot; 0
        without one. `keys[i]` is the key of the first i blocks."""
        return next((count for count in range(most, 0, -1) if keys[count] in self._slot_of), 0)

    def acquire(self, key: Key) -> int:
        """Return the slot of the prefix `key`, which must be published, and keep its content until
        `release`."""
        self.touch(key)
        slot = self._slot_of[key]
        self._passing.pop(slot, None)
        self._readers[slot] += 1
        return slot

    def release(self, slot: int) -> None:
        """End one use of `slot` that `acquire` began."""
        assert self._readers[slot] > 0
        self._readers[slot] -= 1
        if not self._readers[slot] and slot not in self._key_of:
            self._free.append(slot)

    def touch(self, key: Key) -> None:
        """Make the published prefix `key` the most recently used one."""
        self._slot_of[key] = self._slot_of.pop(key)

    def take_lasting(self) -> int | None:
        """Return a slot for a lasting snapshot; None if every slot is in use. Its old content is
        lost. The slot must be given to `publish` or `drop`."""
        if self._free:
            return self._start(self._free.pop())
        return self._overwrite(self._slot_of.values())

    def take_passing(self, sequence: Sequence) -> int | None:
        """Return a slot for a passing snapshot of a prompt that goes on, as `take_lasting` does. A
        long prompt fills free slots first. Then it overwrites its own passing snapshots."""
        if self._free and self._may_pass:
            slot = self.take_lasting()
        else:
            slot = self._reuse(sequence)
        return self._pass(sequence, slot)

    def take_rolling(self, sequence: Sequence) -> int | None:
        """Return a slot for a passing snapshot of a sequence that decodes, as `take_lasting` does.
        It overwrites a passing snapshot of the sequence, but the last `KEPT_ROLLING` only if no
        slot is free."""
        if len(self._owned(sequence)) >= KEPT_ROLLING:
            return self._pass(sequence, self._reuse(sequence))
        return self.take_passing(sequence)

    def publish(self, slot: int, key: Key) -> None:
        """Publish `slot`, which has been saved, as the state after the prefix `key`. If there is
        one already, free `slot`."""
        self._saving.remove(slot)
        self.saves += 1
        if key in self._slot_of:
            self.touch(key)
            self._passing.pop(slot, None)
            self._free.append(slot)
            return
        self._slot_of[key] = slot
        self._key_of[slot] = key

    def drop(self, slot: int) -> None:
        """Free `slot` if it was being saved and has not been published."""
        if slot in self._saving:
            self._saving.remove(slot)
            self._passing.pop(slot, None)
            self._free.append(slot)

    def evict(self, key: Key) -> None:
        """Free the snapshot of the prefix `key`, whose block is being overwritten: it cannot be
        found without the block."""
        self.evictions += key in self._slot_of
        self.forget(key)

    def forget(self, key: Key) -> None:
        """Unpublish the snapshot of the prefix `key`, because its content is wrong or useless."""
        slot = self._slot_of.get(key)
        if slot is None:
            return
        self._unpublish(slot)
        if not self._readers[slot]:
            self._free.append(slot)

    def promise(self, key: Key, sequence: Sequence) -> None:
        """Record that `sequence` will save a snapshot of the prefix `key`."""
        self._promised.setdefault(key, sequence)

    def end_promise(self, key: Key, sequence: Sequence) -> None:
        """Forget a promise of `sequence` if there is one."""
        if self._promised.get(key) is sequence:
            del self._promised[key]

    def promised(self, keys: List[Key], first: int) -> tuple[int, Sequence | None]:
        """Return the largest number of blocks, more than `first`, after which a running sequence
        will save a snapshot, and that sequence. Return `first` and None without one."""
        for count in range(len(keys) - 1, first, -1):
            if keys[count] in self._promised:
                return count, self._promised[keys[count]]
        return first, None

    @property
    def _may_pass(self) -> bool:
        """Whether a further slot may have a passing snapshot."""
        return len(self._passing) < self.num_slots // 2

    def _reuse(self, sequence: Sequence) -> int | None:
        """Return the slot of the oldest passing snapshot of `sequence`, or else a slot that may
        have a passing snapshot."""
        for slot in self._owned(sequence):
            if slot in self._key_of:
                self._unpublish(slot)
                return self._start(slot)
        if self._may_pass:
            return self.take_lasting()
        return self._overwrite(slot for slot in self._slot_of.values() if slot in self._passing)

    def _owned(self, sequence: Sequence) -> list[int]:
        """Return the slots of the passing snapshots of `sequence`, the oldest first."""
        return [slot for slot, owner in self._passing.items() if owner == sequence.arrival]

    def _pass(self, sequence: Sequence, slot: int | None) -> int | None:
        if slot is not None:
            self._passing[slot] = sequence.arrival
        return slot

    def _start(self, slot: int) -> int:
        self._saving.add(slot)
        return slot

    def _overwrite(self, slots: Iterable[int]) -> int | None:
        """Unpublish and return the first of `slots` that no chunk reads."""
        slot = next((one for one in slots if not self._readers[one]), None)
        if slot is None:
            return None
        self.evictions += 1
        self._unpublish(slot)
        return self._start(slot)

    def _unpublish(self, slot: int) -> None:
        del self._slot_of[self._key_of.pop(slot)]
        self._passing.pop(slot, None)
