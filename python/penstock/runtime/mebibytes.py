"""Sizes of memory in MiB, the unit of the memory formula."""

from __future__ import annotations

from typing import Final

MIB: Final = 1 << 20


def mib(size_bytes: int) -> str:
    """Return a size in MiB, rounded up."""
    return f"{-(-size_bytes // MIB):,}"
