"""Decides whether the next step can be planned before the step in flight has been read.

A plan needs the numbers of tokens, not their values. A decode without a grammar adds exactly one
token, and a prefill chunk that does not sample only changes which tokens are computed. So the next
plan must wait only if the samples decide more than their values: a grammar may force tokens or end
the answer, and draft tokens may be accepted or rejected. A stop token is noticed one step late; the
sequence's chunk in that step is then computed in vain and its result dropped.
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
    if any(_needs_cpu(sequence, in_flight.whole_budget) for sequence in chain(going_on, joining)):
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


def _needs_cpu(sequence: Sequence, budget: int) -> bool:
    """Return whether the CPU may take part in sampling or scoring a sequence in a step of up to
    `budget` tokens."""
    if sequence.unscored:
        return True
    samples = sequence.decoding or sequence.missing <= budget
    is_free = sequence.guide is None or sequence.guide.idle
    on_device = samples_on_device(sequence.sampling, sequence.suppressed_tokens)
    return samples and not (is_free and on_device)
