"""The step after the one in flight, planned before anybody knows what that one draws.

It is possible where that makes no difference: every running sequence draws one token in the step
in flight and will want the next one, nothing steers its draw but its own settings, and nobody is
waiting who could join. A token that ends a sequence is seen one step late, so what was planned
ahead for it is computed for nothing, and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from penstock.dialog import Sampling
from penstock.scheduler.cache import BlockCache
from penstock.scheduler.draft import Draft
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.types import AppendBlocks, Chunk


def draft_ahead(flying: Draft, running: List[Sequence], cache: BlockCache) -> Draft | None:
    """The step after `flying`, or None where it must wait for what that one draws."""
    going_on = [sequence for sequence in running if not _is_leaving(sequence)]
    flown = dict(zip(map(id, flying.work), flying.chunks, strict=True))
    if not all(_is_steady(sequence, flown.get(id(sequence))) for sequence in going_on):
        return None
    lacking = [sequence for sequence in going_on if _lacks_a_block(sequence, cache)]
    if not going_on or len(lacking) > cache.pool.num_free or len(going_on) > flying.whole_budget:
        return None
    draft = Draft(flying.whole_budget, flying.whole_budget)
    for sequence in lacking:
        draft.blocks.append(AppendBlocks(sequence.row, (cache.extend(sequence),)))
    for sequence in going_on:
        draft.chunks.append(Chunk(sequence.row, len(sequence.tokens), length=1, samples=True))
        draft.work.append(sequence)
    draft.num_tokens = len(going_on)
    return draft


def is_plain(sampling: Sampling) -> bool:
    """Whether a draw is from the logits as the model gives them. What changes them is listed by
    the host, of penalties and DRY after every token."""
    penalties = sampling.presence_penalty or sampling.frequency_penalty or sampling.dry_multiplier
    repetition = sampling.repetition_penalty
    return not penalties and repetition in (None, 1.0) and not sampling.logit_bias


def _is_leaving(sequence: Sequence) -> bool:
    """It was dropped, or what it draws in flight is its last token."""
    return sequence.aborted or len(sequence.tokens) + 1 >= sequence.known_limit


def _is_steady(sequence: Sequence, chunk: Chunk | None) -> bool:
    """Whether it draws one token of `chunk`, freely."""
    if chunk is None or not chunk.samples or chunk.draft or chunk.num_scores:
        return False
    is_free = sequence.guide is None or sequence.guide.idle
    return is_free and is_plain(sequence.sampling)


def _lacks_a_block(sequence: Sequence, cache: BlockCache) -> bool:
    return len(sequence.blocks) * cache.block_tokens <= len(sequence.tokens)
