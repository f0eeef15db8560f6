"""Several sequences of one request as one stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import msgspec

from penstock.dialog import Event, Outlet, RunEnded, RunFailed, RunStarted, Usage
from penstock.engine.protocol import Engine
from penstock.engine.types import TokenOutput, TokenRequest
from penstock.generation.choice import Choice

if TYPE_CHECKING:
    from penstock._native import Lane


async def stream(
    engine: Engine, call: TokenRequest, choice: Choice, outlet: Outlet | None = None
) -> AsyncGenerator[list[Event], None]:
    """The events of one sequence, a list for each chunk that has any; deltas that `outlet` takes
    are not among them."""
    tap = None if outlet is None else _OutletTap(choice, outlet)
    chunks = cast("AsyncGenerator[TokenOutput, None]", engine.generate(call, tap))
    async with aclosing(chunks):
        async for chunk in chunks:
            events = choice.take(chunk)
            if events:
                yield events
            if choice.ended:
                return
    raise AssertionError("the engine's last chunk has a finish")


class _OutletTap:
    """`engine.Tap`: hands the deltas of a choice to its outlet."""

    __slots__ = ("_choice", "_outlet")

    def __init__(self, choice: Choice, outlet: Outlet) -> None:
        self._choice = choice
        self._outlet = outlet

    def __call__(self, chunk: TokenOutput) -> TokenOutput | None:
        if not self._outlet.ready:
            return chunk
        deltas = self._choice.deltas(chunk)
        if deltas is None:  # the reader finds these events when it looks at the rest
            return msgspec.structs.replace(chunk, tokens=())
        self._outlet.send(deltas)
        return None

    def lane(self) -> Lane | None:
        return self._choice.lane(self._outlet)

    def leave(self) -> None:
        self._choice.leave(self._outlet)


async def merge(
    engine: Engine, calls: Sequence[TokenRequest], choices: Sequence[Choice]
) -> AsyncGenerator[list[Event], None]:
    """The events of several sequences as they come; the first failure ends all. Only so many wait
    as there are sequences; what is made meanwhile is joined with the engine's client."""
    queue: asyncio.Queue[list[Event] | None] = asyncio.Queue()
    room = asyncio.Semaphore(len(calls))
    # Twice what runs at once keeps the engine busy and its queue short.
    slots = asyncio.Semaphore(2 * engine.info.max_num_seqs)

    async def pump(call: TokenRequest, choice: Choice) -> None:
        try:
            async with slots, aclosing(stream(engine, call, choice)) as batches:
                async for events in batches:
                    await room.acquire()
                    queue.put_nowait(events)
        finally:
            queue.put_nowait(None)

    tasks = [
        asyncio.create_task(pump(call, choice)) for call, choice in zip(calls, choices, strict=True)
    ]
    try:
        open_streams = len(tasks)
        while open_streams:
            events = await queue.get()
            if events is not None:
                room.release()
                yield events
                continue
            open_streams -= 1
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def best(
    batches: AsyncGenerator[list[Event], None], choices: Sequence[Choice], best_of: int, n: int
) -> AsyncGenerator[list[Event], None]:
    """Of each `best_of` neighbouring choices the `n` likeliest, by the mean logprob of a token,
    best first; nothing can be told before all are over."""
    told: list[list[Event]] = [[] for _ in choices]
    async with aclosing(batches):
        async for events in batches:
            for event in events:
                assert not isinstance(event, RunStarted | RunEnded | RunFailed)
                told[event.choice].append(event)
    for start in range(0, len(choices), best_of):
        ranked = sorted(choices[start : start + best_of], key=_mean_logprob, reverse=True)
        for rank, choice in enumerate(ranked[:n]):
            index = start // best_of * n + rank
            yield [_renumbered(event, index) for event in told[choice.index]]


def total_usage(choices: Sequence[Choice], per_prompt: int) -> Usage:
    """Of a run: each prompt counts once, the answers add up, times are those of the slowest."""
    usages = [choice.usage for choice in choices]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages[::per_prompt]),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(
            min(usage.cached_tokens for usage in usages[start : start + per_prompt])
            for start in range(0, len(usages), per_prompt)
        ),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        prompt_time_s=max(usage.prompt_time_s for usage in usages),
        completion_time_s=max(usage.completion_time_s for usage in usages),
    )


def _mean_logprob(choice: Choice) -> float:
    return choice.logprob_sum / max(1, choice.num_tokens)


def _renumbered(event: Event, choice: int) -> Event:
    return msgspec.structs.replace(event, choice=choice)
