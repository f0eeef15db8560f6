"""Waiting for the end of cleaning up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


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
