"""Counts for which tokens of each row a drafter has computed keys and values.

The drafter's KV cache has the block numbers of the target's. A block that a row finds in the prefix
cache has the drafter's keys and values only if the drafter was not behind when the block was
filled, so the tokens are counted per block as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.scheduler.types import StepPlan


@dataclass(slots=True)
class _Row:
    """`computed`: number of leading known tokens that are computed; -1 before the first chunk.
    `drafts`: the tokens computed after them, which are known if the target samples the same."""

    blocks: list[int] = field(default_factory=list)
    computed: int = -1
    drafts: tuple[int, ...] = ()


class ComputedTokens:
    """The computed tokens of all rows, in `num_blocks` KV blocks of `block_size` tokens."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._of_block = np.zeros(num_blocks, np.int32)
        self._rows: dict[int, _Row] = {}

    def apply(self, plan: StepPlan) -> None:
        """Apply the releases, admissions and blocks of a plan."""
        for row in plan.releases:
            self._rows.pop(row, None)
        for admit in plan.admissions:
            self._rows[admit.row] = _Row()
        for append in plan.blocks:
            own = self._rows[append.row]
            own.blocks.extend(append.blocks)
            if own.computed >= 0:
                self._of_block[list(append.blocks)] = 0
        for chunk in plan.chunks:
            own = self._rows[chunk.row]
            if own.computed < 0:
                # The blocks before the first chunk come from the prefix cache; the others are new.
                first_new = -(-chunk.start // self._block_size)
                self._of_block[own.blocks[first_new:]] = 0
                own.computed = self._count(own.blocks, 0)

    def confirm(self, row: int, known: Sequence[int]) -> int:
        """Return how many leading tokens of a row are computed. `known`: the known tokens after
        those that were known when `advance` was called last."""
        own = self._rows[row]
        drafts, own.drafts = own.drafts, ()
        right = 0
        while right < min(len(drafts), len(known)) and drafts[right] == known[right]:
            right += 1
        if right:
            self.advance(row, own.computed + right)
        # Another row may have computed blocks that both share.
        own.computed = max(own.computed, self._count(own.blocks, own.computed // self._block_size))
        return own.computed

    def blocks(self, row: int, start: int, end: int) -> list[int]:
        """Return the KV blocks of the tokens [start, end) of a row."""
        size = self._block_size
        return self._rows[row].blocks[start // size : -(-end // size)]

    def computed(self, row: int) -> int:
        """Return how many tokens of a row were computed when `advance` was called last."""
        return self._rows[row].computed

    def advance(self, row: int, computed: int, drafts: tuple[int, ...] = ()) -> None:
        """Record that the first `computed` known tokens of a row are computed, followed by
        `drafts`."""
        own, size = self._rows[row], self._block_size
        for index in range(own.computed // size, -(-computed // size)):
            block = own.blocks[index]
            tokens = min(computed - index * size, size)
            self._of_block[block] = max(self._of_block[block], tokens)
        own.computed, own.drafts = computed, drafts

    def _count(self, blocks: list[int], begin: int) -> int:
        """Return the number of leading computed tokens in `blocks`, of which the first `begin` are
        complete."""
        for index in range(begin, len(blocks)):
            tokens = int(self._of_block[blocks[index]])
            if tokens < self._block_size:
                return index * self._block_size + tokens
        return len(blocks) * self._block_size
