"""Whether the next step can be planned before anybody knows what the step in flight draws.

A plan needs numbers of tokens, not their values. A row that draws freely gains exactly one token,
and a chunk of a prompt that does not draw changes nothing but what is computed. So the plan of the
next step waits only for draws that decide more than a value: a grammar that binds the answer may
force tokens or end, a draft may be confirmed or not. A stop token is seen one step late: what was
planned for its sequence is computed for nothing, and dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as List
from itertools import chain
from typing import Final

from penstock.dialog import Sampling
from penstock.scheduler.cache import BlockCache
from penstock.scheduler.draft import Draft
from penstock.scheduler.sequence import Sequence

MOST_BIASES: Final = 512
"""A device keeps so many biases of a row."""

MOST_HELD_BACK: Final = 64
"""A device keeps so many tokens of a row that are held back."""


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


def draws_on_device(sampling: Sampling, held_back: Collection[int]) -> bool:
    """Whether a device can draw without the host, from logits that it changes itself by penalties,
    a bias and tokens that are `held_back`. The repetitions that DRY charges are found by the host
    after every token."""
    biases = len(sampling.logit_bias or ())
    short = biases <= MOST_BIASES and len(held_back) <= MOST_HELD_BACK
    return short and not sampling.dry_multiplier


def _meets_host(sequence: Sequence, budget: int) -> bool:
    """Whether the host may have a part in what a step of up to `budget` tokens gives of a
    sequence."""
    if sequence.unscored:
        return True
    draws = sequence.decoding or sequence.missing <= budget
    is_free = sequence.guide is None or sequence.guide.idle
    return draws and not (is_free and draws_on_device(sequence.sampling, sequence.held_back))
