"""The time that draft tokens add to a step of decodes, from quartiles of measured steps.

A line fitted to all steps cannot tell this time while every step verifies drafts: the steps have
nearly the same number of tokens, and noise decides the slope. So steps with drafts are compared
with plain ones, which are planned now and then on purpose. The lower quartile ignores the steps in
which the machine did something else, even if that are half of them: noise of that kind only makes
steps longer. Steps are compared only with steps of about as many rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_WINDOW: Final = 96
"""Most samples of a kind."""
_LEAST_SAMPLES: Final = 3
"""Samples of a kind from which a quartile is taken."""
_EXPIRES_AFTER: Final = 512
"""Steps after which a sample is forgotten, so that a few probes notice that the machine has
changed. The last three are kept."""
_PLAIN_EVERY: Final = 48
_FIRST_PLAIN_EVERY: Final = 8
"""A step is planned without drafts after 48 steps with drafts, or after 8 while too few plain steps
have been measured. The step after it has no drafts either."""
_TRIAL_COST: Final = 0.25
"""The assumed cost of a draft token until it has been measured, so that it is measured."""
_LEAST_COST, _MOST_COST = 0.001, 0.99
"""Draft tokens that cost a step each never pay, but probes of them go on."""


class _Sample(NamedTuple):
    step: int
    duration_s: float
    draft_tokens: int


class _Samples:
    """The last samples of one kind, oldest first."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=_WINDOW)

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[_Sample]:
        return iter(self._samples)

    def add(self, sample: _Sample) -> None:
        while len(self) >= _LEAST_SAMPLES and (
            self._samples[0].step < sample.step - _EXPIRES_AFTER
        ):
            self._samples.popleft()
        self._samples.append(sample)


@dataclass(slots=True)
class _RowClass:
    """The steps of about the same number of rows, without draft tokens and with them.
    `since_plain`: steps with draft tokens since the last one without."""

    plain: _Samples = field(default_factory=_Samples)
    drafted: _Samples = field(default_factory=_Samples)
    since_plain: int = 0

    @property
    def plain_s(self) -> float | None:
        """The seconds of a plain step; None if too few were measured."""
        if len(self.plain) < _LEAST_SAMPLES:
            return None
        return _lower_quartile(sample.duration_s for sample in self.plain)


class StepCosts:
    """Measures steps of decodes. The durations are given, without the time of the drafter: this
    module reads no clock."""

    def __init__(self) -> None:
        self._classes: dict[int, _RowClass] = {}
        self._step = 0

    def observe(self, rows: int, draft_tokens: int, duration_s: float) -> None:
        """Record that a step of `rows` decodes, one known token each, took `duration_s` with
        `draft_tokens` in all."""
        self._step += 1
        own = self._classes.setdefault(size_class(rows), _RowClass())
        own.since_plain = own.since_plain + 1 if draft_tokens else 0
        kind = own.drafted if draft_tokens else own.plain
        kind.add(_Sample(self._step, duration_s, draft_tokens))

    def take_plain(self, rows: int) -> bool:
        """Return whether the next step, with `rows` decodes, shall have no draft tokens. The count
        of steps starts again, even if prompts join the step, so that it is not measured."""
        own = self._classes.get(size_class(rows))
        if own is None:
            return False
        if own.since_plain < (_FIRST_PLAIN_EVERY if own.plain_s is None else _PLAIN_EVERY):
            return False
        own.since_plain = 0
        return True

    def token_cost(self, rows: int) -> float | None:
        """Return the time that a draft token adds to a step of `rows` decodes, divided by the time
        per token of that step without drafts, above 0 and at most 0.99; None if no steps of this
        size have been measured."""
        own = self._classes.get(size_class(rows))
        plain_s = None if own is None else own.plain_s
        if own is None or not plain_s:
            return None
        if len(own.drafted) < _LEAST_SAMPLES:
            return _TRIAL_COST
        added = ((one.duration_s - plain_s) / one.draft_tokens for one in own.drafted)
        added_s = _lower_quartile(added)
        return min(max(added_s * rows / plain_s, _LEAST_COST), _MOST_COST)

    def step_token_s(self, rows: int) -> float | None:
        """Return the seconds of a step of `rows` decodes without drafts, divided by `rows`; None if
        they are not known."""
        own = self._classes.get(size_class(rows))
        plain_s = None if own is None else own.plain_s
        return None if plain_s is None else plain_s / rows


def _lower_quartile(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 4]


def size_class(rows: int) -> int:
    """Return the class of step sizes that `rows` belongs to: 1, 2 to 3, 4 to 7, ..."""
    return rows.bit_length()
