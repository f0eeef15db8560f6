"""Event loops of commands, which end well after Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


async def cancel_all() -> None:
    """Cancel the other tasks of the running event loop, which Ctrl-C left unfinished, and wait for
    their end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Context manager for an event loop that the caller runs piece by piece. At the end, tasks that
    Ctrl-C left unfinished are cancelled."""
    loop = asyncio.new_event_loop()
    try:
        yield loop
    finally:
        loop.run_until_complete(cancel_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
