"""Where the chunks of in-flight requests wait for their readers, in one asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from penstock.base.errors import ServiceError
from penstock.engine.types import TokenChunk, TokenRequest


class Mailboxes:
    """One queue a request. A queue is bounded by its request's `max_tokens`.

    `submit` hands a request to the engine; `abort` tells it that nobody reads any more.
    """

    def __init__(
        self, submit: Callable[[TokenRequest], None], abort: Callable[[str], None]
    ) -> None:
        self._submit = submit
        self._abort = abort
        self._queues: dict[str, asyncio.Queue[TokenChunk | ServiceError]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Submit and yield the chunks; aborts if closed before the last one."""
        queue: asyncio.Queue[TokenChunk | ServiceError] = asyncio.Queue()
        assert request.id not in self._queues, "request ids are unique"
        self._queues[request.id] = queue
        ended = False
        try:
            self._submit(request)
            while not ended:
                item = await queue.get()
                if isinstance(item, ServiceError):
                    ended = True
                    raise item
                ended = item.finish is not None
                yield item
        finally:
            self._queues.pop(request.id, None)
            if not ended:
                self._abort(request.id)

    def deliver(self, chunk: TokenChunk) -> None:
        """Put a chunk into its queue; chunks of requests that were closed are dropped."""
        queue = self._queues.get(chunk.id)
        if queue is not None:
            queue.put_nowait(chunk)

    def fail(self, request_id: str, error: ServiceError) -> None:
        """End one request with an error."""
        queue = self._queues.get(request_id)
        if queue is not None:
            queue.put_nowait(error)

    def fail_all(self, make_error: Callable[[], ServiceError]) -> None:
        """End every open request with an error of its own."""
        for queue in self._queues.values():
            queue.put_nowait(make_error())
