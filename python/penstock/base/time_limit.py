"""Time limits of coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

R = TypeVar("R")


async def within(seconds: float, awaitable: Awaitable[R]) -> R:
    """Return the result of `awaitable`. Raises asyncio.TimeoutError after `seconds`; the work is
    then cancelled and has ended.

    Unlike asyncio.wait_for before Python 3.12, this never loses the cancellation of the caller if
    the work ends at the same moment.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait([task], timeout=seconds)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
