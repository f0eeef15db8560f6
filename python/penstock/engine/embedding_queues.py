"""Delivers the vectors of an engine to their readers, in one asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from penstock.base.errors import ServiceError
from penstock.engine.output_queues import EngineObserver
from penstock.engine.types import EmbedOutput, EmbedRequest


class EmbeddingOutputQueues:
    """One queue of outputs per embedding request, bounded by the number of vectors that it asks
    for.

    `submit`, `abort` and `observer`: see `RequestOutputQueues`.
    """

    def __init__(
        self,
        submit: Callable[[EmbedRequest], None],
        abort: Callable[[str], None],
        observer: EngineObserver | None = None,
    ) -> None:
        self._submit = submit
        self._abort = abort
        self._observer = observer
        self._queues: dict[str, asyncio.Queue[EmbedOutput | ServiceError]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    async def embed(self, request: EmbedRequest) -> AsyncIterator[EmbedOutput]:
        """Submit a request and yield its outputs. If the iterator is closed before the last output,
        abort the request."""
        queue: asyncio.Queue[EmbedOutput | ServiceError] = asyncio.Queue()
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
        except ServiceError as error:
            if self._observer is not None:
                self._observer.failed(error)
            raise
        finally:
            self._queues.pop(request.id, None)
            if not ended:
                self._abort(request.id)

    def deliver(self, outputs: Iterable[EmbedOutput]) -> None:
        """Put outputs into the queues of their requests. Outputs of closed requests are dropped."""
        for output in outputs:
            queue = self._queues.get(output.id)
            if queue is not None:
                queue.put_nowait(output)

    def fail(self, request_id: str, error: ServiceError) -> None:
        """End one open request with an error."""
        queue = self._queues.get(request_id)
        if queue is not None:
            queue.put_nowait(error)

    def fail_all(self, make_error: Callable[[], ServiceError]) -> None:
        """End every open request with an error. `make_error` is called once for each request."""
        for queue in self._queues.values():
            queue.put_nowait(make_error())
