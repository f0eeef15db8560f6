"""Ends what a task is doing from outside of it, without a second task to do it in."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType


class CutOff(Exception):
    """The block was cut off."""


class Cuttable:
    """A block of the task that enters it. `cut` ends it: it is cancelled, and raises CutOff in
    place of the cancellation."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cut = False

    def cut(self) -> None:
        """End the block. Harmless before it, after it, and when done twice."""
        if self._task is not None and not self._cut:
            self._cut = True
            self._task.cancel()

    def __enter__(self) -> Cuttable:
        self._task = asyncio.current_task()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if self._cut and isinstance(error, asyncio.CancelledError):
            assert task is not None
            if sys.version_info >= (3, 11):
                task.uncancel()
            raise CutOff from None
