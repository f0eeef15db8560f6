"""Limits how often a repeated failure is logged."""

from __future__ import annotations

import logging
import re
from typing import Final

REPEATED_EVERY_S: Final = 300.0
"""Seconds between two log lines for a repeated failure."""

_NUMBER: Final = re.compile(r"\d+")


class ThrottledLog:
    """Logs a failure when it first occurs. While it repeats, logs it once every `REPEATED_EVERY_S`,
    with the number of repetitions that were not logged. Failures that differ only in numbers count
    as equal."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._kind: str | None = None
        self._unsaid = 0
        self._said_s = 0.0

    def note(self, failure: str, now_s: float) -> None:
        """Log or count a failure. `now_s`: monotonic time in seconds."""
        kind = _NUMBER.sub("", failure)
        if kind == self._kind and now_s - self._said_s < REPEATED_EVERY_S:
            self._unsaid += 1
            return
        if kind == self._kind:
            failure = f"{failure} (the same as the {self._unsaid} times before, not logged)"
        self._kind, self._unsaid, self._said_s = kind, 0, now_s
        self._log.error("%s", failure)

    def clear(self) -> None:
        """Log the next failure in any case, because there was a success."""
        self._kind, self._unsaid = None, 0
