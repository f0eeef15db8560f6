"""The time that records carry."""

from __future__ import annotations

import time
from collections.abc import Callable

# Unix seconds. Several machines that share a store must agree on it to a few seconds.
Clock = Callable[[], int]


def system_clock() -> int:
    """Now, in Unix seconds."""
    return int(time.time())
