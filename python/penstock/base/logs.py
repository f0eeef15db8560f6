"""Logging set up once per process; every other module only calls `logging.getLogger(__name__)`."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import TextIO


def configure_logging(level: int = logging.INFO) -> None:
    """Send `penstock.*` records to standard error, one line each, with time and level."""
    handler = LineHandler(_Lines())
    root = logging.getLogger("penstock")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False
    # What no line shows is not looked up for each of them.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes to standard error. `say` writes a line at INFO that is no record: a third of the work,
    for the access log, which has two for every request. `lines` None: nothing but the text."""

    def __init__(self, lines: _Lines | None = None) -> None:
        super().__init__(sys.stderr)
        self._lines = lines
        self.setFormatter(lines or logging.Formatter("%(message)s"))

    def say(self, name: str, text: str) -> None:
        """Write a line of the logger of this name; a log that cannot be written fails nobody."""
        if self._lines is not None:
            text = f"{self._lines.time(time.time())} INFO {name}: {text}"
        assert self.lock is not None
        with self.lock, contextlib.suppress(OSError, ValueError):
            self.stream.write(text + self.terminator)
            self.stream.flush()


class _Lines(logging.Formatter):
    """As logging's own `%(asctime)s %(levelname)s %(name)s: %(message)s`, which makes the text of
    the second anew for each line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._second = -1
        self._shown = ""

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        told = f"{record.levelname} {record.name}: {record.getMessage()}"
        return f"{self.time(record.created)} {told}"

    def time(self, created_s: float) -> str:
        """A time as it is shown."""
        second = int(created_s)
        if second != self._second:
            self._shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
            self._second = second
        return f"{self._shown},{int(1000 * (created_s - second)):03}"
