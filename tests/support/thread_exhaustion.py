"""Simulates a machine on which no more threads can start."""

from __future__ import annotations

import threading

import pytest


def raise_no_thread(*_: object) -> None:
    """Raise the error of a thread that cannot start."""
    raise RuntimeError("can't start new thread")


def fail_thread_starts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(threading.Thread, "start", raise_no_thread)
