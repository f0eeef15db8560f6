"""Dumps the stacks of all threads, to find out why a process hangs or crashed."""

from __future__ import annotations

import faulthandler
import signal
from typing import Final

STANDARD_ERROR: Final = 2


def dump_stacks_on_signal() -> None:
    """Write the stacks of all threads to standard error on SIGUSR1 and when native code crashes.
    The stacks contain file names and line numbers, but no values of variables."""
    faulthandler.enable(STANDARD_ERROR)
    faulthandler.register(signal.SIGUSR1, STANDARD_ERROR)
