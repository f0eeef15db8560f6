"""Reserves standard output in a process whose parent reads lines from it."""

from __future__ import annotations

import os
from typing import BinaryIO


def take_standard_output() -> BinaryIO:
    """Return a stream to standard output that only the caller can use. All other output to standard
    output from now on, including that of libraries, goes to standard error. Child processes do not
    inherit the stream."""
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return own
