"""How one step's prefill tokens are shared among the prompts that are not computed yet.

A long prompt must not hold up short ones, and short ones must not stop a long one:

1. The step is first shared out on paper in order of arrival. Each prompt is granted as many tokens
   as it misses, until the step is full.
2. A prompt that is granted tokens gives up to a tenth of them (`GIVEN_PARTS`). A tenth that nobody
   takes is saved, up to three tenths of a full step.
3. A prompt may take from those ahead of it that miss at least ten times as many tokens as itself
   (`TIMES_LONGER`), if the step would not finish it anyway. So prompts of one size never pass each
   other.
4. The takers go in the order of their due times, in prefill tokens: the tokens that were computed
   when the prompt arrived, plus ten for each token that it still misses. That is when a tenth of
   the steps alone would finish it. The due time is also the ageing: no taker is passed by one that
   arrives after its due time.
5. The takers are computed first, and all others in order of arrival with the rest of the step.

It follows that the first token of a short prompt beside long ones takes at most three steps, if all
such short prompts together miss at most a tenth of the prefill tokens of a step; that a prompt that
is the oldest from its first step on gives at most a tenth of its tokens up to any later step; and
that nobody starves, since every prompt becomes the oldest one.

The chunks of a prompt have no influence on its bits, so no answer depends on this rule. This module
knows neither rows nor blocks: the scheduler admits a taker that has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.scheduler.sequence import Sequence

GIVEN_PARTS: Final = 10
"""A prompt gives one in so many of the tokens that it is granted."""

TIMES_LONGER: Final = 10
"""A prompt gives only to those that miss so many times fewer tokens."""

SAVED_STEPS: Final = 3
"""A prompt saves what it could have given in so many full steps, not more."""


@dataclass(slots=True)
class Grant:
    """`tokens` of the step for a `sequence` that misses `missing`. `scores`: how many of its
    prompt's log-probabilities the step gives."""

    sequence: Sequence
    missing: int
    tokens: int = 0
    scores: int = 0


class PrefillShares:
    """One step on paper. `room`: tokens that it still has; `full_step`: tokens of the largest step;
    `score_room`: prompt log-probabilities that it can still give."""

    def __init__(self, room: int, full_step: int, score_room: int) -> None:
        self.room = room
        self.score_room = score_room
        self._most_saved = SAVED_STEPS * full_step
        self._grants: list[Grant] = []
        self._takers: list[Grant] = []

    def grant(self, sequence: Sequence) -> None:
        """Give the next prompt in order of arrival what it misses, as far as there is room."""
        grant = Grant(sequence, sequence.missing)
        self._fill(grant, self.room)
        self.room -= grant.tokens
        sequence.saved = min(sequence.saved + grant.tokens, self._most_saved)
        self._grants.append(grant)

    def held_up(self) -> list[tuple[Sequence, int]]:
        """The prompts that the step does not finish and that may take tokens, each with the tokens
        that it misses."""
        return [
            (grant.sequence, grant.missing)
            for grant in self._grants
            if grant.tokens < grant.missing and self.may_take(grant.sequence, grant.missing)
        ]

    def may_take(self, sequence: Sequence, missing: int) -> bool:
        """Whether anybody has tokens for `sequence`, which misses `missing`."""
        return any(_spare(giver) > 0 for giver in self._givers(sequence, missing))

    def take(self, sequence: Sequence) -> None:
        """Move tokens to `sequence` from those that give to it, the newest giver first."""
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
            giver.sequence.saved -= GIVEN_PARTS * given
            wanted -= given
        if own.tokens:
            self._takers.append(own)

    def in_order(self) -> list[tuple[Sequence, int]]:
        """The prompts in the order in which to compute them, each with its most tokens: those that
        took, and then the others, each as many as are left for it."""
        took = [(grant.sequence, grant.tokens) for grant in self._takers]
        passed = {id(sequence) for sequence, _ in took}
        others = [grant for grant in self._grants if id(grant.sequence) not in passed]
        return took + [(grant.sequence, grant.missing) for grant in others]

    def _fill(self, grant: Grant, most: int) -> None:
        """Raise a grant to `most` tokens if so many are missing, and can be scored if that is
        wanted."""
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
    """When a tenth of all steps, from its arrival on, would have computed the prompt."""
    return sequence.arrived_at + GIVEN_PARTS * missing


def _spare(giver: Grant) -> int:
    return min(giver.tokens, giver.sequence.saved // GIVEN_PARTS)
