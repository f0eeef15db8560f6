"""Logs all thread stacks if a step hangs, since its callers get neither an answer nor an error."""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from types import TracebackType
from typing import IO, Final

log = logging.getLogger(__name__)

STALL_S: Final = 60.0
"""Far longer than any step: the longest take a second or two."""


class Watchdog:
    """A context around each step. It reports a step that takes longer than STALL_S once, with the
    stacks of all threads. `start` starts a thread that checks; it costs nothing between checks."""

    def __init__(self, output: int | IO[str]) -> None:
        """`output`: a file or file descriptor for the stacks."""
        self._output = output
        self._began_s: float | None = None
        self._told_s: float | None = None

    def __enter__(self) -> None:
        self._began_s = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._began_s = None

    def start(self) -> None:
        """Check regularly until the process ends."""
        threading.Thread(target=self._keep_looking, name="penstock-stalls", daemon=True).start()

    def look(self, now_s: float) -> bool:
        """Report a hanging step; return whether there was one that had not been reported."""
        began_s = self._began_s
        if began_s is None or began_s == self._told_s or now_s - began_s < STALL_S:
            return False
        self._told_s = began_s
        log.error(
            "a step has taken %.0f s so far; the stacks of all threads follow", now_s - began_s
        )
        faulthandler.dump_traceback(self._output)
        return True

    def _keep_looking(self) -> None:
        while True:
            time.sleep(STALL_S / 2)
            self.look(time.monotonic())
