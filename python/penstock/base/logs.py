"""Logging set up once per process; every other module only calls `logging.getLogger(__name__)`."""

from __future__ import annotations

import logging
import sys
import time


def configure_logging(level: int = logging.INFO) -> None:
    """Send `penstock.*` records to standard error, one line each, with time and level."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    root = logging.getLogger("penstock")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
    # What no line shows is not looked up for each of them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


class _Lines(logging.Formatter):
    """As logging's own `%(asctime)s %(levelname)s %(name)s: %(message)s`, which makes the text of
    the second anew for each line: the access log has two for every request."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._second = -1
        self._shown = ""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        second = int(record.created)
        if second != self._second:
            self._shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
            self._second = second
        told = f"{record.levelname} {record.name}: {record.getMessage()}"
        return f"{self._shown},{int(record.msecs):03} {told}"
