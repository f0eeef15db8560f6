"""The clock for the timestamps in the store."""

from __future__ import annotations

import time
from collections.abc import Callable

# Returns Unix seconds. The clocks of machines that share a store may differ by a few seconds.
Clock = Callable[[], int]


def system_clock() -> int:
    """Return the current time in Unix seconds."""
    return int(time.time())
