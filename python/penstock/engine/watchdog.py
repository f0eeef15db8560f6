"""Logs the stacks of all threads if a step hangs, since its callers then get neither answer nor
error."""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from types import TracebackType
from typing import IO, Final

log = logging.getLogger(__name__)

STALL_S: Final = 60.0
"""Seconds after which a step counts as hanging. The longest steps take a second or two."""


class Watchdog:
    """A context manager around each step. If a step takes longer than STALL_S, it logs that once,
    with the stacks of all threads. `start` starts the thread that checks, which costs almost
    nothing."""

    def __init__(self, output: int | IO[str]) -> None:
        """Create a watchdog that does not check yet. `output`: a file or file descriptor to which
        the stacks are written."""
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
        """Start a thread that checks regularly until the process ends."""
        threading.Thread(target=self._keep_looking, name="penstock-stalls", daemon=True).start()

    def look(self, now_s: float) -> bool:
        """Report the current step if it hangs. Return whether a hanging step was reported now."""
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
