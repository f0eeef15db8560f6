"""Says of failures that come again and again what an operator needs, and not a line for each."""

from __future__ import annotations

import logging
import re
from typing import Final

REPEATED_EVERY_S: Final = 300.0
"""Between two lines of failures of one kind."""

_NUMBER: Final = re.compile(r"\d+")


class ThrottledLog:
    """Failures that follow one another: the first of a kind is logged, then one every
    `REPEATED_EVERY_S`, with the number of those that were not. They are of one kind where they
    differ in numbers alone."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._kind: str | None = None
        self._unsaid = 0
        self._said_s = 0.0

    def note(self, failure: str, now_s: float) -> None:
        """A failure at the time `now_s`, of a clock that only goes forward."""
        kind = _NUMBER.sub("", failure)
        if kind == self._kind and now_s - self._said_s < REPEATED_EVERY_S:
            self._unsaid += 1
            return
        if kind == self._kind:
            failure = f"{failure} (the same as the {self._unsaid} times before, not logged)"
        self._kind, self._unsaid, self._said_s = kind, 0, now_s
        self._log.error("%s", failure)

    def clear(self) -> None:
        """All is well: the next failure is the first."""
        self._kind, self._unsaid = None, 0
