"""Where the vectors of in-flight requests wait for their readers, in one asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from penstock.base.errors import ServiceError
from penstock.engine.types import EmbedChunk, EmbedRequest


class EmbedMailboxes:
    """One queue a request, bounded by the vectors that it asks for. `submit` and `abort` as of
    `Mailboxes`."""

    def __init__(
        self, submit: Callable[[EmbedRequest], None], abort: Callable[[str], None]
    ) -> None:
        self._submit = submit
        self._abort = abort
        self._queues: dict[str, asyncio.Queue[EmbedChunk | ServiceError]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    async def embed(self, request: EmbedRequest) -> AsyncIterator[EmbedChunk]:
        """Submit and yield the chunks; aborts if closed before the last one."""
        queue: asyncio.Queue[EmbedChunk | ServiceError] = asyncio.Queue()
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

    def deliver(self, chunks: Iterable[EmbedChunk]) -> None:
        """Put chunks into their queues; those of requests that were closed are dropped."""
        for chunk in chunks:
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
