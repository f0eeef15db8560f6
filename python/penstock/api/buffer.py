"""The bounded queue between a run and a connection: a slow reader gets fewer, longer deltas."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.dialog import ArgumentsDelta, Event, ReasoningDelta, TextDelta

Delta = TextDelta | ReasoningDelta | ArgumentsDelta

LIMIT_BYTES = 256 * 1024
EVENT_BYTES = 64
LOGPROB_BYTES = 128


class EventBuffer:
    """Events of one run that are not sent yet. One task puts, one takes, in one loop.

    A delta joins the last one of its choice if nothing of that choice came between, so that what
    waits is at most the text itself. Beyond LIMIT_BYTES the putting side waits, and what comes
    after that stays with the engine.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._last_delta: dict[int, int] = {}
        self._size_bytes = 0
        self._taker: asyncio.Future[None] | None = None
        self._putter: asyncio.Future[None] | None = None
        self._closed = False

    async def put(self, event: Event) -> None:
        """Add an event; returns when there is room for another one."""
        self._append(event)
        self.wake()
        if self._size_bytes > LIMIT_BYTES:
            self._putter = asyncio.get_running_loop().create_future()
            await self._putter

    async def take(self) -> list[Event]:
        """All waiting events; empty if `wake` or `close` was called and none came."""
        if not self._events and not self._closed:
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker
        events, self._events = self._events, []
        self._last_delta.clear()
        self._size_bytes = 0
        if self._putter is not None and not self._putter.done():
            self._putter.set_result(None)
        return events

    def wake(self) -> None:
        """Let `take` return, with whatever there is."""
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    def close(self) -> None:
        """From now on `take` returns at once."""
        self._closed = True
        self.wake()

    def _append(self, event: Event) -> None:
        choice = getattr(event, "choice", None)
        if not isinstance(event, Delta):
            self._add(event)
            self._last_delta.pop(choice, None)  # type: ignore[arg-type]
            return
        self._size_bytes += len(event.text)
        if isinstance(event, TextDelta):
            per_token = LOGPROB_BYTES
            self._size_bytes += sum(per_token * (1 + len(t.top)) for t in event.logprobs)
        at = self._last_delta.get(event.choice)
        if at is not None:
            last = self._events[at]
            assert isinstance(last, Delta)
            joined = _join(last, event)
            if joined is not None:
                self._events[at] = joined
                return
        self._last_delta[event.choice] = len(self._events)
        self._add(event)

    def _add(self, event: Event) -> None:
        self._size_bytes += EVENT_BYTES
        self._events.append(event)


def _join(first: Delta, second: Delta) -> Delta | None:
    """Both as one delta, None if they are not of one part."""
    if type(first) is not type(second) or first.part != second.part:
        return None
    text = first.text + second.text
    if isinstance(first, TextDelta) and isinstance(second, TextDelta):
        return TextDelta(first.choice, first.part, text, first.logprobs + second.logprobs)
    return msgspec.structs.replace(first, text=text)
