"""Proposes draft tokens for a sequence, and asks the drafter for those of the next step, limited by
the token budget of the step and the free KV blocks."""

from __future__ import annotations

from penstock.scheduler.block_cache import BlockCache
from penstock.scheduler.drafting import Drafting
from penstock.scheduler.ngram_speculation import MAX_DRAFT_TOKENS, MIN_INDEXED_PER_ROW
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.speculator import Speculator
from penstock.scheduler.step_builder import StepBuilder
from penstock.scheduler.types import AppendBlocks, Chunk


class DraftPlanner:
    """Plans the draft tokens of one step.

    `num_running`: number of running sequences, each of which keeps room for one token in the budget
    and for one KV block.
    `token_cost`: see `NgramSpeculator.propose`.
    `drafting`: the drafter of the runtime; None without one.
    `cost`: time to propose and verify a token of the drafter, divided by the time per token of the
    step.
    `lags`: the drafter also has to compute tokens of steps in which it was not asked.
    """

    def __init__(
        self,
        cache: BlockCache,
        num_running: int,
        token_cost: float,
        drafting: Drafting | None = None,
        cost: float = 0.0,
    ) -> None:
        self._cache = cache
        self._num_running = num_running
        self._token_cost = token_cost
        self._drafting = drafting
        self._cost = cost
        self._asked = 0
        self._rows_left = max(num_running, 1)
        self.lags = False

    def propose(self, sequence: Sequence, builder: StepBuilder) -> tuple[int, ...]:
        """Return draft tokens that may follow the known tokens of `sequence`, and allocate their KV
        blocks."""
        known = len(sequence.tokens)
        room = min(
            builder.budget - (known - sequence.computed) - self._num_running,
            sequence.known_limit - 1 - known,
            MAX_DRAFT_TOKENS - builder.num_draft_tokens,
        )
        if room <= 0 or self._token_cost >= 1.0:
            return ()
        speculator = self._speculator(sequence)
        index_room = max(builder.index_room, MIN_INDEXED_PER_ROW)
        builder.index_room -= speculator.index(sequence.tokens, index_room)
        draft_tokens = speculator.propose(sequence.tokens, room, self._token_cost)
        if draft_tokens and sequence.guide is not None:
            draft_tokens = draft_tokens[: sequence.guide.follow(draft_tokens)]
        return draft_tokens[: self._room(sequence, builder, known + len(draft_tokens)) - known]

    def ask(self, sequence: Sequence, builder: StepBuilder, chunk: Chunk) -> int:
        """Return `num_drafts` for `chunk`, the next one of `sequence`, and allocate the KV blocks
        of the drafts."""
        if self._drafting is None:
            return 0
        speculator = self._speculator(sequence)
        if chunk.samples:
            wanted = self._wanted(sequence, speculator, builder, chunk.draft_tokens)
        else:
            wanted = speculator.pays(self._drafting.max_drafts, self._cost)
        if wanted:
            self.lags |= chunk.start > speculator.asked_until + MAX_DRAFT_TOKENS
            speculator.asked_until = chunk.start + chunk.length
        return wanted

    def _wanted(
        self,
        sequence: Sequence,
        speculator: Speculator,
        builder: StepBuilder,
        draft_tokens: tuple[int, ...],
    ) -> int:
        """Return how many tokens the drafter shall propose after a chunk that samples, and allocate
        their KV blocks."""
        assert self._drafting is not None
        share = -(-(MAX_DRAFT_TOKENS - self._asked) // self._rows_left)
        self._rows_left = max(self._rows_left - 1, 1)
        most = min(self._drafting.max_drafts, sequence.known_limit - 2 - sequence.known, share)
        if most <= 0 or (draft_tokens and speculator.proposed == "ngram"):
            return 0
        wanted = speculator.wanted(most, self._cost)
        if wanted:
            end = sequence.known + len(draft_tokens)
            wanted = max(0, self._room(sequence, builder, end + wanted) - end)
        self._asked += wanted
        return wanted

    def _room(self, sequence: Sequence, builder: StepBuilder, tokens: int) -> int:
        """Allocate KV blocks for `tokens` tokens of `sequence` and return `tokens`. If too few
        blocks are free, return for how many tokens it has blocks."""
        cache = self._cache
        while len(sequence.blocks) * cache.block_size < tokens:
            if cache.pool.num_free <= self._num_running:
                return len(sequence.blocks) * cache.block_size
            builder.blocks.append(AppendBlocks(sequence.row, (cache.extend(sequence),)))
        return tokens

    def _speculator(self, sequence: Sequence) -> Speculator:
        if sequence.speculator is None:
            sequence.speculator = Speculator(self._drafting)
        return sequence.speculator
