"""Reserves standard output in a process whose parent reads lines from it."""

from __future__ import annotations

import os
from typing import BinaryIO


def take_standard_output() -> BinaryIO:
    """Return standard output for exclusive use by the caller. Everything else that is printed from
    now on, also by libraries, goes to standard error. Child processes do not inherit it."""
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return own
