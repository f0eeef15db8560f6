"""Rests of a thread that quantizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Rest: TypeAlias = Callable[[], None]
"""Called by a thread that quantizes weights, after each few milliseconds of work."""


def no_rest() -> None:
    """Return at once."""
