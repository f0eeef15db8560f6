"""Rate-limited logging of repeated failures."""

from __future__ import annotations

import logging
import re
from typing import Final

REPEATED_EVERY_S: Final = 300.0
"""Time between two log lines for failures of one kind."""

_NUMBER: Final = re.compile(r"\d+")


class ThrottledLog:
    """Logs the first of a kind of failure, then one every `REPEATED_EVERY_S` with the number of
    those that were not logged. Failures that differ only in numbers are of one kind."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._kind: str | None = None
        self._unsaid = 0
        self._said_s = 0.0

    def note(self, failure: str, now_s: float) -> None:
        """Log a failure at the monotonic time `now_s`, or count it."""
        kind = _NUMBER.sub("", failure)
        if kind == self._kind and now_s - self._said_s < REPEATED_EVERY_S:
            self._unsaid += 1
            return
        if kind == self._kind:
            failure = f"{failure} (the same as the {self._unsaid} times before, not logged)"
        self._kind, self._unsaid, self._said_s = kind, 0, now_s
        self._log.error("%s", failure)

    def clear(self) -> None:
        """Reset after a success: the next failure is logged."""
        self._kind, self._unsaid = None, 0
