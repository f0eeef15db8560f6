"""Delivers the outputs of requests other than text generation to their readers, in one asyncio
loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from penstock.base.errors import ServiceError
from penstock.engine.output_queues import EngineObserver
from penstock.engine.types import (
    EmbedOutput,
    EmbedRequest,
    FinishReason,
    ImageOutput,
    ImageRequest,
    SpeechOutput,
    SpeechRequest,
    StepOutput,
)


class _Request(Protocol):
    @property
    def id(self) -> str: ...


class _Output(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def finish(self) -> FinishReason | None: ...


_Q = TypeVar("_Q", bound=_Request)
_O = TypeVar("_O", bound=_Output)


class RequestQueues(Generic[_Q, _O]):
    """One queue of outputs per request. Its length is bounded by the outputs that the request asks
    for.

    `submit`, `abort` and `observer`: see `RequestOutputQueues`.
    """

    def __init__(
        self,
        submit: Callable[[_Q], None],
        abort: Callable[[str], None],
        observer: EngineObserver | None = None,
    ) -> None:
        self._submit = submit
        self._abort = abort
        self._observer = observer
        self._queues: dict[str, asyncio.Queue[_O | ServiceError]] = {}

    def __len__(self) -> int:
        return len(self._queues)

    async def outputs(self, request: _Q) -> AsyncIterator[_O]:
        """Submit a request and yield its outputs. If the iterator is closed before the last output,
        abort the request."""
        queue: asyncio.Queue[_O | ServiceError] = asyncio.Queue()
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

    def deliver(self, outputs: Iterable[_O]) -> None:
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


class MediaRequestQueues:
    """The queues of an engine's open requests for embeddings, speech and images.

    `embed`, `speak`, `paint`: send a request to the engine.
    `abort` and `observer`: see `RequestOutputQueues`.
    """

    def __init__(
        self,
        embed: Callable[[EmbedRequest], None],
        speak: Callable[[SpeechRequest], None],
        paint: Callable[[ImageRequest], None],
        abort: Callable[[str], None],
        observer: EngineObserver | None = None,
    ) -> None:
        self.embeddings: Final = RequestQueues[EmbedRequest, EmbedOutput](embed, abort, observer)
        self.speech: Final = RequestQueues[SpeechRequest, SpeechOutput](speak, abort, observer)
        self.images: Final = RequestQueues[ImageRequest, ImageOutput](paint, abort, observer)

    def __len__(self) -> int:
        return len(self.embeddings) + len(self.speech) + len(self.images)

    def deliver(self, outputs: Sequence[StepOutput]) -> None:
        """Put outputs into the queues of their requests, except those of generated text."""
        self.embeddings.deliver(one for one in outputs if isinstance(one, EmbedOutput))
        self.speech.deliver(one for one in outputs if isinstance(one, SpeechOutput))
        self.images.deliver(one for one in outputs if isinstance(one, ImageOutput))

    def fail(self, request_id: str, error: ServiceError) -> None:
        """End one open request with an error."""
        self.embeddings.fail(request_id, error)
        self.speech.fail(request_id, error)
        self.images.fail(request_id, error)

    def fail_all(self, make_error: Callable[[], ServiceError]) -> None:
        """End every open request with an error. `make_error` is called once for each request."""
        self.embeddings.fail_all(make_error)
        self.speech.fail_all(make_error)
        self.images.fail_all(make_error)
