"""Runs a long call in a thread, one step at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class _Stopped(BaseException):
    """Ends the call. No `except Exception` of a library catches it."""


class SteppedCall(Generic[_T]):
    """A call in a thread that runs only inside `step`.

    `call(pause)`: the work. It calls `pause` after each step, and returns the result.
    """

    def __init__(self, call: Callable[[Callable[[], None]], _T]) -> None:
        self._call = call
        self._resume = threading.Semaphore(0)
        self._paused = threading.Semaphore(0)
        self._stopping = False
        self._ended = False
        self._error: BaseException | None = None
        self._results: list[_T] = []
        self._thread = threading.Thread(target=self._run, name="penstock-image", daemon=True)
        self._thread.start()

    def step(self) -> _T | None:
        """Run until the next `pause`. Return the result if the call has ended, else None. Raises
        RuntimeError if the call failed."""
        self._resume.release()
        self._paused.acquire()
        if not self._ended:
            return None
        self._thread.join()
        if self._error is not None:
            raise RuntimeError(f"the call failed: {self._error}") from self._error
        return self._results[0]

    def stop(self) -> None:
        """End the call at its last `pause`. Do nothing if it has ended."""
        if not self._ended:
            self._stopping = True
            self._resume.release()
            self._thread.join()

    def _pause(self) -> None:
        self._paused.release()
        self._wait()

    def _wait(self) -> None:
        self._resume.acquire()
        if self._stopping:
            raise _Stopped

    def _run(self) -> None:
        try:
            self._wait()
            self._results.append(self._call(self._pause))
        except BaseException as error:  # the outermost frame of this thread
            self._error = error
        self._ended = True
        self._paused.release()
