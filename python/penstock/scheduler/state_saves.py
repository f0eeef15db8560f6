"""Decides which chunk saves a snapshot of the recurrent states, at which position.

Positions are ends of KV blocks, and a chunk saves one snapshot at most:

1. The last position of a prompt that a request with the same prompt can use.
2. The place where a prompt leaves the blocks of an earlier one. The state of the earlier prompt
was not saved there, but further prompts will probably branch at the same place.
3. The last position in each chunk of a prompt that goes on.
4. Each position that a decoding sequence passes. The sequence overwrites its earlier ones, so that
the next turn of a conversation, or the sequence itself after a preemption, finds the last one.

The first two are lasting snapshots, the others passing ones.
"""

from __future__ import annotations

from penstock.scheduler.block_cache import BlockCache
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.state_snapshots import StateSnapshots
from penstock.scheduler.types import StateUse


class StateSaves:
    """Plans the snapshots of chunks, in the slots of `snapshots`."""

    def __init__(self, cache: BlockCache, snapshots: StateSnapshots) -> None:
        self._cache = cache
        self._snapshots = snapshots

    def limit(self, sequence: Sequence, length: int) -> int:
        """Return the length of the next chunk of a prompt, up to `length`: the chunk ends at the
        place where the prompt branches if it would also contain its last position."""
        start, end, branch = sequence.computed, sequence.computed + length, sequence.branch
        if start < branch < self._last(sequence) and end == sequence.known:
            return length if self._has(sequence, branch) else branch - start
        return length

    def use(self, sequence: Sequence, length: int) -> StateUse:
        """Return the snapshots that the next `length` tokens of `sequence` read and write."""
        restore, sequence.snapshot = sequence.snapshot, None
        self._snapshots.restores += restore is not None
        save = self._save_decode if sequence.decoding else self._save_prefill
        position, slot = save(sequence, sequence.computed + length)
        if slot is None:
            return StateUse(restore)
        sequence.saved = position
        return StateUse(restore, slot, position - sequence.computed)

    def _save_prefill(self, sequence: Sequence, end: int) -> tuple[int, int | None]:
        start, last = sequence.computed, self._last(sequence)
        if start < sequence.branch <= end and not self._has(sequence, sequence.branch):
            position = sequence.branch
        else:
            position = min(end // self._cache.block_size * self._cache.block_size, last)
        if position <= sequence.saved or position < start or self._has(sequence, position):
            return 0, None
        if position in (sequence.branch, last):
            return position, self._snapshots.take_lasting()
        return position, self._snapshots.take_passing(sequence)

    def _save_decode(self, sequence: Sequence, end: int) -> tuple[int, int | None]:
        position = end // self._cache.block_size * self._cache.block_size
        if position <= sequence.saved or position < sequence.computed:
            return 0, None
        return position, self._snapshots.take_rolling(sequence)

    def _has(self, sequence: Sequence, position: int) -> bool:
        """Return whether a snapshot at `position` of a prompt is published, and make it the most
        recently used one."""
        key = self._cache.key_at(sequence, position)
        if not self._snapshots.holds(key):
            return False
        self._snapshots.touch(key)
        return True

    def _last(self, sequence: Sequence) -> int:
        """Return the last end of a block before the last known token of a prompt."""
        return (sequence.known - 1) // self._cache.block_size * self._cache.block_size
