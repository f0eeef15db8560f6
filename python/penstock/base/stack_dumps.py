"""What the threads of this process are at, for who must find out why it hangs or has crashed."""

from __future__ import annotations

import faulthandler
import signal
from typing import Final

STANDARD_ERROR: Final = 2


def dump_stacks_on_signal() -> None:
    """From now on SIGUSR1, and a fault of native code, write the stacks of all threads to standard
    error: places in files, and nothing of what is computed there."""
    faulthandler.enable(STANDARD_ERROR)
    faulthandler.register(signal.SIGUSR1, STANDARD_ERROR)
