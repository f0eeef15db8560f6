"""Tells a run that is refused from one that is slow, before anything is promised to the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from penstock.dialog import Event, RunFailed, RunStarted

# An engine that has no room says so at once.
REJECTION_WAIT_S: Final = 0.05


async def without_early_rejection(
    events: AsyncGenerator[Event, None],
) -> AsyncGenerator[Event, None]:
    """The events of a run. RunStarted is held back for a moment: of a run that is refused right
    after it, only RunFailed is shown, so that it still becomes an HTTP status."""
    async with aclosing(events):
        first = await anext(events)
        if not isinstance(first, RunStarted):
            yield first
            return
        second = asyncio.ensure_future(_next(events))
        try:
            await asyncio.wait((second,), timeout=REJECTION_WAIT_S)
            if not (second.done() and isinstance(second.result(), RunFailed)):
                yield first
            yield await second
        finally:
            second.cancel()
            await asyncio.wait((second,))
        async for event in events:
            yield event


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)
