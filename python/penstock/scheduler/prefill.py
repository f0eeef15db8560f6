"""Chunked prefill: divides the prefill tokens of one step among the prompts that are not computed
yet.

A long prompt must not hold up short ones, and short prompts must not stop a long one:

1. The prefill tokens of the step are first granted in order of arrival. Each prompt is granted as
many tokens as it misses, until the step is full.
2. A prompt that is granted tokens gives up to a tenth of them (`GIVEN_PARTS`) to other prompts. If
no prompt takes them, the prompt saves them as credit, up to three tenths of a full step.
3. A prompt may take tokens from older prompts that miss at least ten times as many tokens as itself
(`TIMES_LONGER`), if the step would not finish it anyway. So prompts of one size never pass each
other.
4. The prompts that take tokens are ordered by due time, measured in prefill tokens: the tokens that
were computed when the prompt arrived, plus ten for each token that it still misses. At that time, a
tenth of every step alone would have finished it. Since due times age, a prompt that arrives after
the due time of another does not pass it.
5. The prompts that take tokens are computed first, and all others in order of arrival with the rest
of the step.

Consequences: a short prompt next to long ones gets its first token after three steps at most, if
all such short prompts together miss at most a tenth of the prefill tokens of a step. A prompt that
is the oldest from its first step on gives up at most a tenth of its tokens in any later step. No
prompt starves, since every prompt becomes the oldest one.

Chunked prefill does not change the bits of a result, so no answer depends on these rules. This
module knows neither rows nor blocks: the planner gives a row to a prompt that takes tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.scheduler.sequence import Sequence

GIVEN_PARTS: Final = 10
"""A prompt gives up one in this many of the tokens that it is granted."""

TIMES_LONGER: Final = 10
"""A prompt gives tokens only to prompts that miss at most a tenth (one in this many) of the tokens
that it misses itself."""

CREDIT_STEPS: Final = 3
"""A prompt saves at most the credit of this many full steps."""


@dataclass(slots=True)
class Grant:
    """The prefill tokens of a step that are granted to one sequence.

    `missing`: tokens of the sequence that are not computed yet.
    `tokens`: tokens granted.
    `scores`: prompt log-probabilities that the step computes for the sequence.
    """

    sequence: Sequence
    missing: int
    tokens: int = 0
    scores: int = 0


class PrefillShares:
    """Divides the prefill tokens of one step among prompts.

    `room`: prefill tokens left in the step.
    `full_step`: most tokens of a step.
    `score_room`: prompt log-probabilities that the step can still compute.
    """

    def __init__(self, room: int, full_step: int, score_room: int) -> None:
        self.room = room
        self.score_room = score_room
        self._max_credit = CREDIT_STEPS * full_step
        self._grants: list[Grant] = []
        self._takers: list[Grant] = []

    def grant(self, sequence: Sequence) -> None:
        """Grant a prompt its missing tokens, as far as there is room. Called for all prompts in
        order of arrival."""
        grant = Grant(sequence, sequence.missing)
        self._fill(grant, self.room)
        self.room -= grant.tokens
        sequence.credit = min(sequence.credit + grant.tokens, self._max_credit)
        self._grants.append(grant)

    def unfinished(self) -> list[tuple[Sequence, int]]:
        """Return the prompts that the step does not finish and that may take tokens from older
        prompts, each with the number of its missing tokens."""
        return [
            (grant.sequence, grant.missing)
            for grant in self._grants
            if grant.tokens < grant.missing and self.may_take(grant.sequence, grant.missing)
        ]

    def may_take(self, sequence: Sequence, missing: int) -> bool:
        """Return whether an older prompt can give tokens to `sequence`, which misses `missing`
        tokens."""
        return any(_spare(giver) > 0 for giver in self._givers(sequence, missing))

    def take(self, sequence: Sequence) -> None:
        """Move tokens to `sequence` from the older prompts that can give some, the newest of them
        first."""
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
        """Return the prompts in the order in which to compute them, each with the most tokens to
        compute: first the prompts that took tokens, then the others."""
        took = [(grant.sequence, grant.tokens) for grant in self._takers]
        passed = {id(sequence) for sequence, _ in took}
        others = [grant for grant in self._grants if id(grant.sequence) not in passed]
        return took + [(grant.sequence, grant.missing) for grant in others]

    def _fill(self, grant: Grant, most: int) -> None:
        """Raise a grant to `most` tokens, if that many are missing and the step has room for their
        prompt log-probabilities."""
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
    """Return the due time of a prompt, in prefill tokens: the time when a tenth of all prefill
    since its arrival would have computed it. `missing`: tokens not computed yet."""
    return sequence.arrived_at + GIVEN_PARTS * missing


def _spare(giver: Grant) -> int:
    return min(giver.tokens, giver.sequence.credit // GIVEN_PARTS)
