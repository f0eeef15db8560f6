"""A machine that gives a process no more threads."""

from __future__ import annotations

import threading

import pytest


def raise_no_thread(*_: object) -> None:
    """Fails as a thread that cannot start."""
    raise RuntimeError("can't start new thread")


def fail_thread_starts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(threading.Thread, "start", raise_no_thread)
