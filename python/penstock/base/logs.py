"""Sets up logging once per process. Other modules only call `logging.getLogger(__name__)`."""

from __future__ import annotations

import logging
import sys
import time


def configure_logging(level: int = logging.INFO) -> None:
    """Write `penstock.*` log records of at least `level` to standard error, one line each, with
    time and level."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    root = logging.getLogger("penstock")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
    # The log lines do not contain these values, so they need not be determined for each record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


class _Lines(logging.Formatter):
    """Formats a record as `%(asctime)s %(levelname)s %(name)s: %(message)s`. Each second is
    formatted only once, because the access log writes two lines per request."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._second = -1
        self._second_text = ""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        second = int(record.created)
        if second != self._second:
            self._second_text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
            self._second = second
        text = f"{record.levelname} {record.name}: {record.getMessage()}"
        return f"{self._second_text},{int(record.msecs):03} {text}"
