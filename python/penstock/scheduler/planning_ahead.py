"""Decides whether the next step can be planned before the step in flight has been read.

A plan needs the numbers of tokens, not their values. A decode adds exactly one token, and a prefill
chunk that does not sample only changes which tokens are computed. So the next plan must wait only
if the samples decide more than their values, as draft tokens do, which may be accepted or rejected.
A stop token, or a grammar's end, is noticed one step late; the sequence's chunk in that step is
then computed in vain and its result dropped.

A grammar may force tokens after a sampled one, which saves steps. A step planned ahead samples them
one by one instead, because it cannot know them. So steps with grammars are planned ahead only if
most sequences have no grammar: their steps would wait for the few that have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as List
from typing import Final

from penstock.dialog import Sampling
from penstock.scheduler.block_cache import BlockCache
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.step_builder import StepBuilder

MAX_LOGIT_BIASES: Final = 512
"""Most logit biases that the device stores for one row."""

MAX_SUPPRESSED_TOKENS: Final = 64
"""Most tokens that the device can suppress in one row until `min_tokens` is reached."""


def must_wait_for_commit(
    in_flight: StepBuilder, running: List[Sequence], joining: Iterable[Sequence], cache: BlockCache
) -> bool:
    """Return whether the step `in_flight` must be committed before the next step can be planned.

    This is so if the next step depends on the tokens that `in_flight` samples, if the CPU takes
    part in sampling them, or if the next step needs blocks that are not free yet. `joining`:
    waiting sequences that may get a row.
    """
    if any(chunk.draft_tokens or chunk.num_scores for chunk in in_flight.chunks):
        return True
    going_on = [sequence for sequence in running if not sequence.is_finishing]
    candidates, budget = [*going_on, *joining], in_flight.whole_budget
    sampling = [sequence for sequence in candidates if _may_sample(sequence, budget)]
    if any(not samples_on_device(one.sampling, one.suppressed_tokens) for one in sampling):
        return True
    if any(sequence.unscored for sequence in candidates):
        return True
    if 2 * sum(map(_is_bound, sampling)) >= max(len(sampling), 1):
        return True
    lacking = sum(
        max(cache.blocks_for(sequence.known) - len(sequence.blocks), 0) for sequence in going_on
    )
    return lacking > cache.pool.num_free


def samples_on_device(sampling: Sampling, suppressed_tokens: Collection[int]) -> bool:
    """Return whether a device can sample without the CPU. The device applies penalties, logit
    biases and `suppressed_tokens`, up to its limits. DRY needs the CPU, which searches for
    repetitions after every token."""
    biases = len(sampling.logit_bias or ())
    short = biases <= MAX_LOGIT_BIASES and len(suppressed_tokens) <= MAX_SUPPRESSED_TOKENS
    return short and not sampling.dry_multiplier


def _may_sample(sequence: Sequence, budget: int) -> bool:
    """Return whether a step of up to `budget` tokens may sample a token of a sequence."""
    return sequence.decoding or sequence.missing <= budget


def _is_bound(sequence: Sequence) -> bool:
    """Return whether a grammar applies to the next token of a sequence."""
    return sequence.guide is not None and not sequence.guide.idle
