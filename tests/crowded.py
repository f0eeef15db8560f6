"""A machine that gives a process no more threads."""

from __future__ import annotations

import threading

import pytest


def no_thread(*_: object) -> None:
    """Fails as a thread that cannot start."""
    raise RuntimeError("can't start new thread")


def give_no_thread(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(threading.Thread, "start", no_thread)
