"""The interface of drafters: models that propose draft tokens for speculative decoding.

A drafter runs in the runtime, after the tokens of a step have been sampled. The scheduler decides
how many tokens it proposes (`Chunk.num_drafts`), and the next step of the target model verifies
them, so a drafter changes the speed of a sequence and never its tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from penstock.scheduler.types import Draft, DraftSource, SampledToken, StepPlan, StepResult


class Drafter(Protocol):
    """Proposes draft tokens after each step. Its own keys and values, if it has some, are in blocks
    with the numbers of the target's KV blocks, so a prefix hit or a preemption needs no message."""

    @property
    def source(self) -> DraftSource:
        """The source of its draft tokens, for metrics."""

    @property
    def reads_hidden(self) -> bool:
        """Whether `propose` needs the hidden states of all tokens of the step (an MTP head and an
        assistant do, another draft model does not)."""

    def propose(
        self, plan: StepPlan, sampled: Sequence[SampledToken], hidden: Any
    ) -> tuple[Draft, ...]:
        """Compute the keys and values of the tokens of `plan`, and return the draft tokens
        that its chunks ask for. The runtime has appended the sampled tokens to the rows.

        - `sampled`: the sampled tokens, as in `StepResult`.
        - `hidden`: the final hidden state of each token of the step, [T, W], draft tokens included,
          as the backend returns it; None unless `reads_hidden`.
        """
        ...

    def close(self) -> None:
        """Release memory. No other method may be called afterwards."""


def with_drafts(drafter: Drafter, plan: StepPlan, result: StepResult, hidden: Any) -> StepResult:
    """Return the result of a step with the drafter's tokens and time. `hidden`: see
    `Drafter.propose`."""
    began = time.perf_counter()
    drafts = drafter.propose(plan, result.sampled, hidden if drafter.reads_hidden else None)
    return msgspec.structs.replace(result, drafts=drafts, draft_s=time.perf_counter() - began)
