"""Finds out where a step hangs: whoever waits for it gets no answer, and no error either."""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from types import TracebackType
from typing import IO, Final

log = logging.getLogger(__name__)

STALL_S: Final = 60.0
"""Far more than any step takes: the largest ones take a second or two."""


class Watchdog:
    """A context around each step. Of one that takes more than STALL_S it tells once, with the
    stacks of all threads. `start` has a thread look; costs nothing between its looks."""

    def __init__(self, output: int | IO[str]) -> None:
        """`output`: a file, or the descriptor of one, for the stacks."""
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
        """Look now and then, until the process ends."""
        threading.Thread(target=self._keep_looking, name="penstock-stalls", daemon=True).start()

    def look(self, now_s: float) -> bool:
        """Whether a step was found to stall that had not been told of."""
        began_s = self._began_s
        if began_s is None or began_s == self._told_s or now_s - began_s < STALL_S:
            return False
        self._told_s = began_s
        log.error("a step has taken %.0f s so far; this is where the threads are", now_s - began_s)
        faulthandler.dump_traceback(self._output)
        return True

    def _keep_looking(self) -> None:
        while True:
            time.sleep(STALL_S / 2)
            self.look(time.monotonic())
