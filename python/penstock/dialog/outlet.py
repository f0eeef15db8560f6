"""The short way of an answer's deltas: past the generators, in the moment the tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.dialog.events import ArgumentsDelta, ReasoningDelta, TextDelta

if TYPE_CHECKING:
    from penstock._native import Gate

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

    def gate(self, choice: int, part: int) -> Gate | None:
        """Where the texts that follow in this part may be sent without being events, in the frames
        that their deltas would be; None where they may not. `ready`, after a delta of the part. The
        outlet closes it when it is no longer ready, and counts what went through when that is told
        with `passed`."""
        ...

    def passed(self, choice: int, part: int, text: str) -> None:
        """All that went through the gate of a part, which is closed."""
        ...
