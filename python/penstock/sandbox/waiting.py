"""Waiting that survives the cancellation of the caller, so that no process is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, even if the caller is cancelled meanwhile (once or again)."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
    task.result()


async def discard(future: asyncio.Future[Any]) -> None:
    """Cancel a future and wait for its end; its result or exception does not matter any more."""
    future.cancel()
    await asyncio.wait({future})
    if not future.cancelled():
        future.exception()


async def complete(
    work: Coroutine[Any, Any, T], undo: Callable[[T], Coroutine[Any, Any, None]]
) -> T:
    """Return the value of `work`. If the caller is cancelled meanwhile, the value is undone."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.cancelled():
            await finish(undo_when_done(task, undo))
        raise


async def undo_when_done(
    task: asyncio.Future[T], undo: Callable[[T], Coroutine[Any, Any, None]]
) -> None:
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is None:
        await undo(task.result())
