"""How a run opens: which revision of an adapter it uses is settled when the engine takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Final

from penstock.adapters.view import NOT_FOUND, AdapterView
from penstock.base.errors import ServiceError
from penstock.dialog import AdapterRevision, Event

REFUSAL_S: Final = 1.0
"""Longer than a step, between which an engine hears."""

Batches = AsyncGenerator[list[Event], None]


@asynccontextmanager
async def open_with_adapter(
    adapters: AdapterView,
    wanted: str | AdapterRevision | None,
    open_batches: Callable[[str | None], Batches],
) -> AsyncIterator[tuple[str | None, Batches]]:
    """The revision that is used, None for the base model, and what `open_batches` makes with it,
    which is closed with the block.

    An alias may be switched after it was looked up and before the engine has the request: then the
    engine has freed the old revision, nothing has been generated, and the new one is taken. So
    the block begins after the first batch, or a moment: an engine that refuses does so at once.
    """
    if wanted is None:
        async with aclosing(open_batches(None)) as batches:
            yield None, batches
        return
    revision = adapters.resolve(wanted)
    while True:
        async with aclosing(open_batches(revision)) as batches:
            first = asyncio.ensure_future(_next(batches))
            try:
                await asyncio.wait((first,), timeout=REFUSAL_S)
                if not _stale(first):
                    async with aclosing(_resumed(first, batches)) as resumed:
                        yield revision, resumed
                    return
            finally:
                first.cancel()
                await asyncio.wait((first,))
        revision = await adapters.resolve_again(wanted, revision)


async def _resumed(first: asyncio.Future[list[Event]], batches: Batches) -> Batches:
    yield await first
    async for events in batches:
        yield events


def _stale(first: asyncio.Future[list[Event]]) -> bool:
    """Whether the engine does not have the revision any more."""
    error = first.exception() if first.done() else None
    return isinstance(error, ServiceError) and error.code == NOT_FOUND


async def _next(batches: Batches) -> list[Event]:
    return await anext(batches)
