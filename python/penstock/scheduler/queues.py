"""Waiting and running sequences: admission, growth and preemption.

`running` and `waiting` are each in order of arrival. A waiting sequence is admitted before an older
one only if the older one waits for tokens of the step, for a prefix that another is computing, or
for prompt scores, and only if a row and the blocks that the oldest one needs stay free. If the
oldest one waits for a row or for blocks, no sequence passes it. So the oldest request always
advances, and none starves.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter
from typing import Final

from penstock.scheduler.block_cache import BlockCache
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.step_builder import StepBuilder
from penstock.scheduler.types import AppendBlocks

MAX_PASSED: Final = 32
"""A step looks for sequences to admit behind at most this many older waiting ones. Each costs a
lookup of its prefix."""

_by_arrival = attrgetter("arrival")


class SequenceQueues:
    """The waiting and the running sequences of one engine, and the rows of the running ones."""

    def __init__(self, cache: BlockCache, max_num_seqs: int) -> None:
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.free_rows = list(range(max_num_seqs - 1, -1, -1))
        self.preemptions = 0
        self._releases: list[int] = []
        self._stalled: tuple[str, int] = ("", 0)

    @property
    def continuing(self) -> list[Sequence]:
        """Running sequences for which steps after those in flight compute something."""
        return [sequence for sequence in self.running if not sequence.is_finishing]

    def may_admit(self) -> bool:
        """Return whether the oldest waiting sequence may get a row, as far as is known."""
        if not self.waiting or not self.free_rows:
            return False
        spare = self.cache.pool.num_free - len(self.running)
        return self._stalled[0] != self.waiting[0].id or spare > self._stalled[1]

    def max_candidates(self) -> int:
        """Return how many of the oldest waiting sequences the next step may admit from: only the
        oldest one takes the last free row."""
        if not self.may_admit():
            return 0
        free = len(self.free_rows)
        return free if free == 1 else free + MAX_PASSED

    def try_admit(self, sequence: Sequence, found: list[int], builder: StepBuilder) -> bool:
        """Give a waiting sequence a row and blocks for all its known tokens, if there are enough.

        Each running sequence may soon need another block: one per sequence stays in reserve, or the
        admitted sequence would be preempted at once. A sequence that passes the oldest waiting one
        also leaves a row and the blocks that the oldest one needs.
        """
        oldest, cache = self.waiting[0], self.cache
        reserve = len(self.running)
        spare = cache.pool.num_free - reserve
        if sequence is not oldest:
            reserve += cache.count_needed(oldest)
        if len(self.free_rows) < (1 if sequence is oldest else 2):
            return False
        if not cache.try_admit(sequence, found, reserve):
            if sequence is oldest:
                self._stalled = (sequence.id, spare)
            return False
        if sequence is oldest:
            self._stalled = ("", 0)
        self._admit(sequence, builder)
        return True

    def ensure_row(self, sequence: Sequence, builder: StepBuilder) -> bool:
        """Return whether a sequence can compute in this step, after admitting it if it waits."""
        if sequence.row < 0:
            found = self.cache.find_prefix(sequence)
            if not self.try_admit(sequence, found, builder):
                return False
        return self.cache.has_arrived(sequence)

    def grow(self, sequence: Sequence, builder: StepBuilder) -> bool:
        """Give a running sequence blocks for all its known tokens, preempting the newest sequences
        if none is free. Return False if it was itself preempted."""
        cache = self.cache
        new: list[int] = []
        while len(sequence.blocks) * cache.block_size < sequence.known:
            while cache.pool.num_free == 0:
                victim = self.running.pop()
                self._preempt(victim)
                if victim is sequence:
                    return False
            new.append(cache.extend(sequence))
        if new:
            builder.blocks.append(AppendBlocks(sequence.row, tuple(new)))
        return True

    def free(self, sequence: Sequence) -> None:
        """Release the row and blocks of a sequence. The caller removes it from `running`."""
        self.cache.free(sequence)
        self._releases.append(sequence.row)
        self.free_rows.append(sequence.row)
        sequence.row = -1
        sequence.decoding = False
        sequence.unsent = 0

    def drop_freed(self) -> None:
        """Remove sequences whose row was released from `running`."""
        self.running = [sequence for sequence in self.running if sequence.row >= 0]

    def take_releases(self) -> tuple[int, ...]:
        """Return the rows released since the last call."""
        releases, self._releases = tuple(self._releases), []
        return releases

    def _admit(self, sequence: Sequence, builder: StepBuilder) -> None:
        """Let a waiting sequence that has its blocks run."""
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_by_arrival)
        sequence.row = self.free_rows.pop()
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        builder.admissions.append(sequence.as_admit())
        builder.blocks.append(AppendBlocks(sequence.row, tuple(sequence.blocks)))

    def _preempt(self, sequence: Sequence) -> None:
        self.free(sequence)
        insort(self.waiting, sequence, key=_by_arrival)
        self.preemptions += 1
