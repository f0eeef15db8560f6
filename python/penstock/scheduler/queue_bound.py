"""How many requests may wait. Sequences of one client's request are let in together, or not at all:
a refusal in the middle would throw away what the others have computed."""

from __future__ import annotations

from collections import Counter

from penstock.base.errors import Overloaded


class QueueBound:
    """Lets a request in while fewer than `max_queue` wait for which there is no row. The others of
    its group follow it whatever the queue, as long as one of them is unfinished; "" is no group."""

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._unfinished: Counter[str] = Counter()

    def check(self, group: str, queued: int, free_rows: int) -> None:
        """May one more of `group` join the `queued`? Those whom the `free_rows` will take do not
        count. Raises Overloaded."""
        if not self._unfinished[group] and queued - free_rows >= self._max_queue:
            raise Overloaded(
                f"{queued} requests are waiting already; try again later", retry_after_s=1
            )

    def enter(self, group: str) -> None:
        """One of `group` was let in."""
        if group:
            self._unfinished[group] += 1

    def leave(self, group: str) -> None:
        """One of `group` is over."""
        if group:
            self._unfinished[group] -= 1
            if not self._unfinished[group]:
                del self._unfinished[group]
