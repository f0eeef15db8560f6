"""Limits the number of waiting requests. The sequences of one client request are admitted together
or not at all: refusing one of them later would waste the work on the others."""

from __future__ import annotations

from collections import Counter

from penstock.base.errors import Overloaded


class QueueBound:
    """Accepts a sequence while fewer than `max_queue` sequences wait without a free row. Further
    sequences of a `group` are always accepted while a sequence of the group is unfinished.
    Sequences with the group "" are independent."""

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._unfinished: Counter[str] = Counter()

    def check(self, group: str, queued: int, free_rows: int) -> None:
        """Raise Overloaded if no further sequence of `group` is accepted. `queued`: number of
        waiting sequences. `free_rows`: rows that are free for them, so that this many do not count.
        """
        if not self._unfinished[group] and queued - free_rows >= self._max_queue:
            raise Overloaded(
                f"{queued} requests are waiting already; try again later", retry_after_s=1
            )

    def enter(self, group: str) -> None:
        """Count an accepted sequence of `group`."""
        if group:
            self._unfinished[group] += 1

    def leave(self, group: str) -> None:
        """Count a finished sequence of `group`."""
        if group:
            self._unfinished[group] -= 1
            if not self._unfinished[group]:
                del self._unfinished[group]
