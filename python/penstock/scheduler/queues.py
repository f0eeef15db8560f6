"""The waiting and the running sequences: admission, growth and preemption.

`running` and `waiting` are both in order of arrival. A waiting sequence is admitted before an older
one only under two conditions. First, the older one waits for tokens of the step, for a prefix that
another sequence is computing, or for room for prompt scores. Second, a row stays free, and the
blocks that the oldest waiting sequence needs. If the oldest one waits for a row or for blocks, no
sequence passes it. So the oldest request always advances, and no request starves.
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
"""A step tries to admit waiting sequences behind at most this many older ones that must wait
longer. Each older one costs a lookup of its prefix."""

_by_arrival = attrgetter("arrival")


class SequenceQueues:
    """The waiting and the running sequences of one engine, and the rows of the running
    sequences."""

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
        """The running sequences that still have tokens to compute after the steps in flight."""
        return [sequence for sequence in self.running if not sequence.is_finishing]

    def may_admit(self) -> bool:
        """Return whether the oldest waiting sequence may get a row: a row is free, and more blocks
        are free than when the sequence was last refused."""
        if not self.waiting or not self.free_rows:
            return False
        spare = self.cache.pool.num_free - len(self.running)
        return self._stalled[0] != self.waiting[0].id or spare > self._stalled[1]

    def max_candidates(self) -> int:
        """Return how many of the oldest waiting sequences the next step may consider for admission.
        If only one row is free, only the oldest sequence can get it."""
        if not self.may_admit():
            return 0
        free = len(self.free_rows)
        return free if free == 1 else free + MAX_PASSED

    def try_admit(self, sequence: Sequence, found: list[int], builder: StepBuilder) -> bool:
        """Give a waiting sequence a row and blocks for all its known tokens. Return False if there
        are not enough.

        `found`: the result of `BlockCache.find_prefix`. One block per running sequence stays in
        reserve, because each may soon need another block and would then preempt the admitted
        sequence. A sequence that passes the oldest waiting one also leaves a row and the blocks
        that the oldest one needs.
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
        """Admit a sequence if it is waiting. Return whether it can compute in this step."""
        if sequence.row < 0:
            found = self.cache.find_prefix(sequence)
            if not self.try_admit(sequence, found, builder):
                return False
        return self.cache.has_arrived(sequence)

    def grow(self, sequence: Sequence, builder: StepBuilder) -> bool:
        """Give a running sequence blocks for all its known tokens. If no block is free, preempt the
        newest running sequences. Return False if `sequence` itself was preempted."""
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
        """Release the row and the blocks of a sequence. The caller removes the sequence from
        `running`."""
        self.cache.free(sequence)
        self._releases.append(sequence.row)
        self.free_rows.append(sequence.row)
        sequence.row = -1
        sequence.decoding = False
        sequence.unsent = 0

    def drop_freed(self) -> None:
        """Remove the sequences without a row from `running`."""
        self.running = [sequence for sequence in self.running if sequence.row >= 0]

    def take_releases(self) -> tuple[int, ...]:
        """Return the rows that were released since the last call."""
        releases, self._releases = tuple(self._releases), []
        return releases

    def _admit(self, sequence: Sequence, builder: StepBuilder) -> None:
        """Move a waiting sequence that has its blocks to `running` and give it a row."""
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
