"""Whether the next step can be planned before anybody knows what the step in flight draws.

A plan needs numbers of tokens, not their values. A row that draws freely gains exactly one token,
and a chunk of a prompt that does not draw changes nothing but what is computed. So the plan of the
next step waits only for draws that decide more than a value: a grammar that binds the answer may
force tokens or end, a draft may be confirmed or not. A stop token is seen one step late: what was
planned for its sequence is computed for nothing, and dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List
from itertools import chain

from penstock.dialog import Sampling
from penstock.scheduler.cache import BlockCache
from penstock.scheduler.draft import Draft
from penstock.scheduler.sequence import Sequence


def must_wait(
    flying: Draft, running: List[Sequence], joining: Iterable[Sequence], cache: BlockCache
) -> bool:
    """Whether the step after `flying` can only be planned when `flying` is committed: it depends
    on what `flying` draws, the host has a part in its draws, or it needs blocks that are not free
    yet. `joining`: waiting sequences that may get a row."""
    if any(chunk.draft or chunk.num_scores for chunk in flying.chunks):
        return True
    going_on = [sequence for sequence in running if not sequence.leaves]
    if any(_meets_host(sequence, flying.whole_budget) for sequence in chain(going_on, joining)):
        return True
    lacking = sum(
        max(cache.blocks_for(sequence.known) - len(sequence.blocks), 0) for sequence in going_on
    )
    return lacking > cache.pool.num_free


def is_plain(sampling: Sampling) -> bool:
    """Whether a draw is from the logits as the model gives them. What changes them is listed by
    the host, of penalties and DRY after every token."""
    penalties = sampling.presence_penalty or sampling.frequency_penalty or sampling.dry_multiplier
    repetition = sampling.repetition_penalty
    return not penalties and repetition in (None, 1.0) and not sampling.logit_bias


def _meets_host(sequence: Sequence, budget: int) -> bool:
    """Whether the host may have a part in what a step of up to `budget` tokens gives of a
    sequence."""
    if sequence.unscored:
        return True
    draws = sequence.decoding or sequence.missing <= budget
    is_free = sequence.guide is None or sequence.guide.idle
    return draws and not (is_free and is_plain(sequence.sampling))
