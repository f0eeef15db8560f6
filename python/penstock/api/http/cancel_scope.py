"""Ends what a task is doing from outside of it, without a second task to do it in."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType


class ScopeCancelled(Exception):
    """The block was cancelled."""


class CancelScope:
    """A block of the task that enters it. `cancel` ends it: it is cancelled, and raises
    ScopeCancelled in
    place of the cancellation."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """End the block. Harmless before it, after it, and when done twice."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def __enter__(self) -> CancelScope:
        self._task = asyncio.current_task()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if self._cancelled and isinstance(error, asyncio.CancelledError):
            assert task is not None
            if sys.version_info >= (3, 11):
                task.uncancel()
            raise ScopeCancelled from None
