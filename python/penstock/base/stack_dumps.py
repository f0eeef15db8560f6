"""Dumps the stacks of all threads, to find out why a process hangs or crashed."""

from __future__ import annotations

import faulthandler
import signal
from typing import Final

STANDARD_ERROR: Final = 2


def dump_stacks_on_signal() -> None:
    """Write the stacks of all threads to standard error on SIGUSR1 and on a crash of native code.
    The dump has file names and line numbers, no values."""
    faulthandler.enable(STANDARD_ERROR)
    faulthandler.register(signal.SIGUSR1, STANDARD_ERROR)
