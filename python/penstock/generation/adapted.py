"""A run with an adapter: which generation it uses is settled when the engine takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

import msgspec

from penstock.adapters.live import NOT_FOUND, LiveAdapters
from penstock.base.errors import ServiceError
from penstock.dialog import AdapterGeneration, Event, RunStarted

REFUSAL_S: Final = 1.0
"""Longer than a step, between which an engine hears."""

Batches = AsyncGenerator[list[Event], None]


async def adapted(
    adapters: LiveAdapters,
    wanted: str | AdapterGeneration,
    started: RunStarted,
    open_batches: Callable[[str], Batches],
) -> Batches:
    """`started`, with the generation that is used, and what `open_batches` makes with it.

    An alias may be switched after it was looked up and before the engine has the request: then the
    engine has freed the old generation, nothing has been generated, and the new one is taken. So
    `started` waits for the first batch, for a moment: an engine that refuses does so at once.
    """
    generation = adapters.resolve(wanted)
    while True:
        async with aclosing(open_batches(generation)) as batches:
            first = asyncio.ensure_future(_next(batches))
            try:
                await asyncio.wait((first,), timeout=REFUSAL_S)
                if not _stale(first):
                    yield [msgspec.structs.replace(started, adapter_generation=generation)]
                    yield await first
                    async for events in batches:
                        yield events
                    return
            finally:
                first.cancel()
                await asyncio.wait((first,))
        generation = await adapters.resolve_again(wanted, generation)


def _stale(first: asyncio.Future[list[Event]]) -> bool:
    """Whether the engine does not have the generation any more."""
    error = first.exception() if first.done() else None
    return isinstance(error, ServiceError) and error.code == NOT_FOUND


async def _next(batches: Batches) -> list[Event]:
    return await anext(batches)
