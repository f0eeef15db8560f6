"""Whether the next step can be planned before anybody knows what the step in flight samples.

A plan needs numbers of tokens, not their values. A row that samples freely gains exactly one token,
and a chunk of a prompt that does not draw changes nothing but what is computed. So the plan of the
next step waits only for samples that decide more than a value: a grammar that binds the answer may
force tokens or end, a draft may be accepted or not. A stop token is seen one step late: what was
planned for its sequence is computed for nothing, and dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as List
from itertools import chain
from typing import Final

from penstock.dialog import Sampling
from penstock.scheduler.block_cache import BlockCache
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.step_builder import StepBuilder

MOST_BIASES: Final = 512
"""A device keeps so many biases of a row."""

MOST_HELD_BACK: Final = 64
"""A device keeps so many tokens of a row that are held back."""


def must_wait_for_commit(
    in_flight: StepBuilder, running: List[Sequence], joining: Iterable[Sequence], cache: BlockCache
) -> bool:
    """Whether the step after `in_flight` can only be planned when `in_flight` is committed: it
    depends
    on what `in_flight` samples, the host has a part in its samples, or it needs blocks that are
    not free
    yet. `joining`: waiting sequences that may get a row."""
    if any(chunk.draft_tokens or chunk.num_scores for chunk in in_flight.chunks):
        return True
    going_on = [sequence for sequence in running if not sequence.is_finishing]
    if any(_needs_host(sequence, in_flight.whole_budget) for sequence in chain(going_on, joining)):
        return True
    lacking = sum(
        max(cache.blocks_for(sequence.known) - len(sequence.blocks), 0) for sequence in going_on
    )
    return lacking > cache.pool.num_free


def samples_on_device(sampling: Sampling, held_back: Collection[int]) -> bool:
    """Whether a device can draw without the host, from logits that it changes itself by penalties,
    a bias and tokens that are `held_back`. The repetitions that DRY charges are found by the host
    after every token."""
    biases = len(sampling.logit_bias or ())
    short = biases <= MOST_BIASES and len(held_back) <= MOST_HELD_BACK
    return short and not sampling.dry_multiplier


def _needs_host(sequence: Sequence, budget: int) -> bool:
    """Whether the host may have a part in what a step of up to `budget` tokens gives of a
    sequence."""
    if sequence.unscored:
        return True
    samples = sequence.decoding or sequence.missing <= budget
    is_free = sequence.guide is None or sequence.guide.idle
    return samples and not (is_free and samples_on_device(sequence.sampling, sequence.held_back))
