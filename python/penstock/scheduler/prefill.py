"""Chunked prefill: shares one step's prefill tokens among the prompts that are not computed yet.

A long prompt must not hold up short ones, and short ones must not stop a long one:

1. The prefill tokens of the step are first granted in order of arrival. Each prompt is granted as
   many tokens as it misses, until the step is full.
2. A prompt that is granted tokens gives up to a tenth of them (`GIVEN_PARTS`). If they are not
   taken, it saves them as credit, up to three tenths of a full step.
3. A prompt may take from older prompts that miss at least ten times as many tokens as itself
   (`TIMES_LONGER`), if the step would not finish it anyway. So prompts of one size never pass each
   other.
4. The takers go in the order of their due times, in prefill tokens: the tokens that were computed
   when the prompt arrived, plus ten for each token that it still misses. That is when a tenth of
   the steps alone would finish it. The due time also ages prompts: a prompt that arrives after the
   due time of a taker does not pass it.
5. The takers are computed first, and all others in order of arrival with the rest of the step.

Consequences: the first token of a short prompt beside long ones needs at most three steps, if all
such short prompts together miss at most a tenth of the prefill tokens of a step. A prompt that is
the oldest from its first step on gives up at most a tenth of its tokens in any later step. No
prompt starves, since every prompt becomes the oldest one.

Chunked prefill does not change the bits of a result, so no answer depends on this rule. This module
knows neither rows nor blocks: the planner admits a taker that has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.scheduler.sequence import Sequence

GIVEN_PARTS: Final = 10
"""A prompt gives up one in this many of the tokens that it is granted."""

TIMES_LONGER: Final = 10
"""A prompt gives only to prompts that miss at least this many times fewer tokens."""

CREDIT_STEPS: Final = 3
"""A prompt saves at most the credit of this many full steps."""


@dataclass(slots=True)
class Grant:
    """Prefill tokens of the step that are granted to a `sequence` that misses `missing`. `scores`:
    prompt log-probabilities that the step computes for it."""

    sequence: Sequence
    missing: int
    tokens: int = 0
    scores: int = 0


class PrefillShares:
    """The division of one step's prefill. `room`: tokens left; `full_step`: tokens of the largest
    step; `score_room`: prompt log-probabilities left."""

    def __init__(self, room: int, full_step: int, score_room: int) -> None:
        self.room = room
        self.score_room = score_room
        self._max_credit = CREDIT_STEPS * full_step
        self._grants: list[Grant] = []
        self._takers: list[Grant] = []

    def grant(self, sequence: Sequence) -> None:
        """Grant the next prompt in order of arrival its missing tokens, as far as there is room."""
        grant = Grant(sequence, sequence.missing)
        self._fill(grant, self.room)
        self.room -= grant.tokens
        sequence.credit = min(sequence.credit + grant.tokens, self._max_credit)
        self._grants.append(grant)

    def unfinished(self) -> list[tuple[Sequence, int]]:
        """Return the prompts that the step does not finish and that may take tokens, each with its
        missing tokens."""
        return [
            (grant.sequence, grant.missing)
            for grant in self._grants
            if grant.tokens < grant.missing and self.may_take(grant.sequence, grant.missing)
        ]

    def may_take(self, sequence: Sequence, missing: int) -> bool:
        """Return whether an older prompt has tokens to give to `sequence`, which misses
        `missing`."""
        return any(_spare(giver) > 0 for giver in self._givers(sequence, missing))

    def take(self, sequence: Sequence) -> None:
        """Move tokens to `sequence` from the prompts that give to it, the newest giver first."""
        own = next((grant for grant in self._grants if grant.sequence is sequence), None)
        if own is None:
            own = Grant(sequence, sequence.missing)
        givers = self._givers(sequence, own.missing)
        before = own.tokens
        self._fill(own, own.tokens + sum(map(_spare, givers)))
        wanted = own.tokens - before
        for giver in givers:
            given = min(wanted, _spare(giver))
            giver.tokens -= given
            giver.sequence.credit -= GIVEN_PARTS * given
            wanted -= given
        if own.tokens:
            self._takers.append(own)

    def in_order(self) -> list[tuple[Sequence, int]]:
        """Return the prompts in the order in which to compute them, each with its most tokens: the
        takers first, then the others."""
        took = [(grant.sequence, grant.tokens) for grant in self._takers]
        passed = {id(sequence) for sequence, _ in took}
        others = [grant for grant in self._grants if id(grant.sequence) not in passed]
        return took + [(grant.sequence, grant.missing) for grant in others]

    def _fill(self, grant: Grant, most: int) -> None:
        """Raise a grant to `most` tokens, if that many are missing and, with prompt
        log-probabilities, can be scored."""
        sequence = grant.sequence
        self.score_room += grant.scores
        tokens = min(grant.missing, most)
        if sequence.unscored > self.score_room:
            tokens = min(tokens, sequence.next_score + self.score_room - sequence.computed)
        grant.tokens = max(tokens, 0)
        end = sequence.computed + grant.tokens
        grant.scores = min(sequence.unscored, max(0, end - sequence.next_score))
        self.score_room -= grant.scores

    def _givers(self, sequence: Sequence, missing: int) -> list[Grant]:
        return [
            grant
            for grant in reversed(self._grants)
            if grant.sequence.arrival < sequence.arrival and grant.missing >= TIMES_LONGER * missing
        ]


def due(sequence: Sequence, missing: int) -> int:
    """Return the due time of a prompt: when a tenth of all prefill since its arrival would have
    computed it."""
    return sequence.arrived_at + GIVEN_PARTS * missing


def _spare(giver: Grant) -> int:
    return min(giver.tokens, giver.sequence.credit // GIVEN_PARTS)
