"""The sources of draft tokens of one sequence, behind one interface.

N-gram lookup proposes tokens when a step is planned. The drafter of the runtime proposes them at
the end of the step before, if the scheduler asks for them. The draft with the greater expected gain
is verified.
"""

from __future__ import annotations

from array import array
from typing import Final

from penstock.scheduler.acceptance import LEAST_GAIN, AcceptanceRates, best_length, speedup
from penstock.scheduler.drafting import Drafting
from penstock.scheduler.ngram_speculation import NgramSpeculator
from penstock.scheduler.types import DraftSource

_MEMORY: Final = 24
"""Observations after which a sequence forgets its own acceptance rates."""
_PROBE_EVERY: Final = 32
_MOST_BETWEEN_PROBES: Final = 256
"""While drafts do not pay, the drafter is asked for one token in two steps of 32 to notice a
change: in the first it computes the tokens since it was asked last, and the second measures its
time. The distance doubles up to 256 steps."""


class Speculator:
    """Proposes the draft tokens of one sequence. `drafting`: the drafter; None without one.

    `asked_until`: the end of the last chunk whose step asked the drafter for drafts.
    """

    def __init__(self, drafting: Drafting | None = None) -> None:
        self._ngram = NgramSpeculator()
        self._drafting = drafting
        self._acceptance: AcceptanceRates | None = None
        if drafting is not None:
            self._acceptance = AcceptanceRates(
                drafting.max_drafts, drafting.acceptance.rate, _MEMORY
            )
        self.asked_until = 0
        self._drafts: tuple[int, ...] = ()
        self._drafts_after = 0
        self._proposed: DraftSource = "ngram"
        self._pays = False
        self._skipped = 0
        self._probe_every = _PROBE_EVERY

    @property
    def proposed(self) -> DraftSource:
        """The source of the last proposed draft."""
        return self._proposed

    def index(self, tokens: array[int], most: int) -> int:
        """Index up to `most` further tokens for n-gram lookup and return how many were indexed.
        Call this before `propose`."""
        return self._ngram.index(tokens, most)

    def keep(self, drafts: tuple[int, ...], tokens: array[int], after: int) -> None:
        """Keep the draft tokens of the drafter for the next step. They were made for the end of the
        first `after` of `tokens`. Further tokens may have been forced since: drafts that agree with
        them are shortened, others are dropped."""
        forced = tuple(tokens[after:])
        agree = drafts[: len(forced)] == forced
        self._drafts = drafts[len(forced) :] if agree else ()
        self._drafts_after = len(tokens)

    def propose(self, tokens: array[int], most: int, token_cost: float) -> tuple[int, ...]:
        """Return up to `most` draft tokens for the end of `tokens`. `token_cost`: see
        `NgramSpeculator.propose`."""
        copied = self._ngram.propose(tokens, most, token_cost)
        drafts = self._drafts if len(tokens) == self._drafts_after else ()
        if not drafts or self._acceptance is None or self._drafting is None or most <= 0:
            self._proposed = "ngram"
            return copied
        probabilities = self._acceptance.probabilities(min(len(drafts), most))
        # At least one token of a draft is verified, so that its acceptance rate stays known.
        length = max(1, best_length(probabilities, token_cost))
        gain = speedup(probabilities[:length], token_cost)
        if copied and speedup(self._ngram.probabilities(len(copied)), token_cost) > gain:
            self._proposed = "ngram"
            return copied
        self._proposed = self._drafting.source
        return drafts[:length]

    def pays(self, most: int, cost: float) -> int:
        """Return the length of a draft of the drafter that pays, up to `most`; 0 if none does.
        `cost`: time to propose and verify a draft token, divided by the time per token of a step
        without drafts."""
        if self._acceptance is None:
            return 0
        least = 1.0 if self._pays else LEAST_GAIN
        return best_length(self._acceptance.probabilities(most), cost, least)

    def wanted(self, most: int, cost: float) -> int:
        """Return how many tokens the drafter shall propose, up to `most`, which is positive. See
        `pays`."""
        length = self.pays(most, cost)
        self._pays = length > 0
        if length:
            self._skipped, self._probe_every = 0, _PROBE_EVERY
            return length
        self._skipped += 1
        if self._acceptance is None or self._skipped < self._probe_every:
            return 0
        if self._skipped > self._probe_every:
            self._skipped = 0
            self._probe_every = min(2 * self._probe_every, _MOST_BETWEEN_PROBES)
        return 1

    def learn(self, proposed: int, accepted: int) -> None:
        """Update the acceptance rates of the source of the last draft after a step that accepted
        `accepted` of its `proposed` tokens."""
        if self._proposed == "ngram":
            self._ngram.learn(proposed, accepted)
        elif self._acceptance is not None and self._drafting is not None:
            self._acceptance.learn(proposed, accepted)
            self._drafting.acceptance.learn(proposed, accepted)
