"""The drafter of the runtime as the scheduler knows it: its acceptance rates and its costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median_low
from typing import Final

from penstock.scheduler.acceptance import rates_of_engine
from penstock.scheduler.step_costs import size_class
from penstock.scheduler.types import Chunk, DraftSource, StepResult

_WINDOW: Final = 33
"""Most measured steps of a size."""
_LONGEST_DECODE: Final = 16
"""A step with a longer chunk computes a prompt, so its time says nothing about drafts."""


class Drafting:
    """The drafter of the runtime, over all sequences.

    `source`: the source of its draft tokens.
    `max_drafts`: most tokens that it proposes for a sequence in a step.
    `seconds`: the time that it has taken so far.
    """

    def __init__(self, source: DraftSource, max_drafts: int) -> None:
        self.source: DraftSource = source
        self.max_drafts = max_drafts
        self.acceptance = rates_of_engine(max_drafts)
        self.seconds = 0.0
        self._token_s: dict[int, deque[float]] = {}

    def measure(self, chunks: Iterable[Chunk], result: StepResult) -> None:
        """Measure the drafter's time per token in a step with these `chunks`, in which it computed
        no tokens of earlier steps."""
        drafted = sum(len(draft.token_ids) for draft in result.drafts)
        if not drafted or any(chunk.length > _LONGEST_DECODE for chunk in chunks):
            return
        samples = self._token_s.setdefault(size_class(len(result.drafts)), deque(maxlen=_WINDOW))
        samples.append(result.draft_s / drafted)

    def token_s(self, rows: int) -> float:
        """Return the seconds that the drafter takes per draft token in a step with `rows` drafts: 0
        if unknown, so that the first drafts are measured. It is the median of the last steps. A
        size that was not measured has the time of the closest one that was."""
        if not self._token_s:
            return 0.0
        size = size_class(rows)
        return median_low(
            self._token_s[min(self._token_s, key=lambda known: (abs(known - size), known))]
        )
