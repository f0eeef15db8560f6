"""Guesses for one step: drawn from a sequence's own tokens, as far as step and cache have room."""

from __future__ import annotations

from penstock.scheduler.cache import BlockCache
from penstock.scheduler.draft import Draft
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.speculation import INDEXED_A_ROW, MAX_DRAFT, Speculation
from penstock.scheduler.types import AppendBlocks


def guess_tokens(
    sequence: Sequence, draft: Draft, cache: BlockCache, num_running: int, price: float
) -> tuple[int, ...]:
    """Tokens that may follow the known ones of a sequence, and that have room. The rows after it
    keep the budget for a token each. `price`: see `Speculation.draft`."""
    known = len(sequence.tokens)
    room = min(
        draft.budget - (known - sequence.computed) - num_running,
        sequence.known_limit - 1 - known,
        MAX_DRAFT - draft.num_guessed,
    )
    if room <= 0:
        return ()
    if sequence.speculation is None:
        sequence.speculation = Speculation()
    index_room = max(draft.index_room, INDEXED_A_ROW)
    draft.index_room -= sequence.speculation.index(sequence.tokens, index_room)
    guess = sequence.speculation.draft(sequence.tokens, room, price)
    if guess and sequence.guide is not None:
        guess = guess[: sequence.guide.follow(guess)]
    while len(sequence.blocks) * cache.block_tokens < known + len(guess):
        if cache.pool.num_free <= num_running:
            return guess[: len(sequence.blocks) * cache.block_tokens - known]
        draft.blocks.append(AppendBlocks(sequence.row, (cache.extend(sequence),)))
    return guess
