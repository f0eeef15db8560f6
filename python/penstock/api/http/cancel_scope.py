"""Cancels a block inside a task from other code, without a separate task for the block."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType


class ScopeCancelled(Exception):
    """Raised at the end of a block that CancelScope cancelled."""


class CancelScope:
    """Context manager around a block of the current task. `cancel` stops the block, which then
    raises ScopeCancelled instead of asyncio.CancelledError."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the block. Does nothing if the block is not running or was already cancelled."""
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
