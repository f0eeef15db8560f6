"""The short way of an answer's deltas: past the generators, in the moment the tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.dialog.events import ArgumentsDelta, ReasoningDelta, TextDelta

Delta = TextDelta | ReasoningDelta | ArgumentsDelta
DELTAS = frozenset((TextDelta, ReasoningDelta, ArgumentsDelta))


class Outlet(Protocol):
    """Whoever reads the events of a run and would rather be handed its deltas.

    A delta goes this way only while the reader waits for the next event, having dealt with all
    before it: so the order is that of the run. Deltas that do not, and all other events, are
    yielded.
    """

    @property
    def ready(self) -> bool:
        """Whether deltas would be taken now."""
        ...

    def send(self, deltas: Sequence[Delta]) -> None:
        """Take deltas while `ready`. Does not raise."""
        ...
