"""Proposes draft tokens for a sequence, limited by the token budget of the step and the free KV
blocks."""

from __future__ import annotations

from penstock.scheduler.block_cache import BlockCache
from penstock.scheduler.ngram_speculation import (
    MAX_DRAFT_TOKENS,
    MIN_INDEXED_PER_ROW,
    NgramSpeculator,
)
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.step_builder import StepBuilder
from penstock.scheduler.types import AppendBlocks


def propose_draft_tokens(
    sequence: Sequence, builder: StepBuilder, cache: BlockCache, num_running: int, token_cost: float
) -> tuple[int, ...]:
    """Return draft tokens that may follow the known tokens of `sequence`, and allocate their KV
    blocks.

    `num_running`: number of running sequences, each of which keeps room for one token in the
    budget.
    `token_cost`: see `NgramSpeculator.propose`.
    """
    known = len(sequence.tokens)
    room = min(
        builder.budget - (known - sequence.computed) - num_running,
        sequence.known_limit - 1 - known,
        MAX_DRAFT_TOKENS - builder.num_draft_tokens,
    )
    if room <= 0:
        return ()
    if sequence.speculator is None:
        sequence.speculator = NgramSpeculator()
    index_room = max(builder.index_room, MIN_INDEXED_PER_ROW)
    builder.index_room -= sequence.speculator.index(sequence.tokens, index_room)
    draft_tokens = sequence.speculator.propose(sequence.tokens, room, token_cost)
    if draft_tokens and sequence.guide is not None:
        draft_tokens = draft_tokens[: sequence.guide.follow(draft_tokens)]
    while len(sequence.blocks) * cache.block_size < known + len(draft_tokens):
        if cache.pool.num_free <= num_running:
            return draft_tokens[: len(sequence.blocks) * cache.block_size - known]
        builder.blocks.append(AppendBlocks(sequence.row, (cache.extend(sequence),)))
    return draft_tokens
