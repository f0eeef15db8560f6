"""Keeps the terminal from showing keys that are pressed while an answer is shown."""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def without_echo() -> Iterator[None]:
    """Context manager in which standard input, if it is a terminal, does not echo. Ctrl-C works,
    and the keys are read later."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, ValueError, OSError):
        yield
        return
    silent = list(before)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
