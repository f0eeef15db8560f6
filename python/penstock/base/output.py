"""Standard output of a process whose parent reads lines from it."""

from __future__ import annotations

import os
from typing import BinaryIO


def take_standard_output() -> BinaryIO:
    """Standard output, for the caller alone: whatever else is printed there from now on, by
    libraries too, goes to standard error. Not inherited by children."""
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return own
