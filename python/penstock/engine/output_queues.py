"""Delivers the token outputs of an engine to their readers, in one asyncio loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.base.errors import ServiceError
from penstock.engine.output_coalescing import coalesced
from penstock.engine.types import TokenOutput, TokenRequest


class SequenceObserver(Protocol):
    """Observes the outputs of one sequence as its reader takes them."""

    def observe(self, output: TokenOutput) -> None: ...

    def end(self) -> None:
        """Called once: after the last output, or when the reader stops early."""
        ...


class EngineObserver(Protocol):
    """Observes the calls of one engine, for metrics and logs."""

    def sequence(self) -> SequenceObserver | None:
        """Return an observer for a sequence that the current task submits, or None."""
        ...

    def failed(self, error: ServiceError) -> None:
        """Record an error that ends a call."""
        ...


class RequestOutputQueues:
    """The output streams of an engine's open requests.

    `submit`: sends a request to the engine. Its second argument is the next request of the same
    call, None for the last one.
    `abort`: makes the engine drop a request.
    `most_open`: returns how many sequences of one call may be submitted at the same time.
    `observer`: sees the outputs as their readers take them, and the errors.
    """

    def __init__(
        self,
        submit: Callable[[TokenRequest, TokenRequest | None], None],
        abort: Callable[[str], None],
        most_open: Callable[[], int],
        observer: EngineObserver | None = None,
    ) -> None:
        self.submit = submit
        self.abort = abort
        self.most_open = most_open
        self.observer = observer
        self.streams: dict[str, OutputQueue] = {}

    def __len__(self) -> int:
        return len(self.streams)

    def generate(self, *requests: TokenRequest) -> OutputQueue:
        """Return the output stream of the requests, which are submitted when the stream is first
        read."""
        return OutputQueue(self, requests)

    def admit(self, request_id: str) -> None:
        """Record that the engine has admitted a request, and wake the reader of its stream."""
        stream = self.streams.get(request_id)
        if stream is not None:
            stream.admit(request_id)

    def deliver(self, outputs: Iterable[TokenOutput]) -> None:
        """Put outputs into the streams of their requests. Outputs of closed requests are
        dropped."""
        find = self.streams.get
        for output in outputs:
            stream = find(output.id)
            if stream is not None:
                stream.put(output)

    def fail(self, request_id: str, error: ServiceError) -> None:
        """End the stream of an open request with an error."""
        stream = self.streams.pop(request_id, None)
        if stream is not None:
            stream.fail(error)

    def fail_all(self, make_error: Callable[[], ServiceError]) -> None:
        """End the streams of all open requests with errors. `make_error` is called once for each
        request."""
        while self.streams:
            request_id = next(iter(self.streams))
            self.fail(request_id, make_error())


class OutputQueue:
    """The `OutputStream` of one `generate` call. It has one reader.

    While the reader is busy, the outputs of each sequence are coalesced, so that a slow reader gets
    fewer, larger outputs. The first output with a token is not coalesced with later ones, because
    its time is the end of the prefill. The length of the queue is bounded by the `max_tokens` of
    its requests.
    """

    __slots__ = (
        "_error",
        "_observers",
        "_open",
        "_outputs",
        "_queues",
        "_reader",
        "_started",
        "_unadmitted",
        "_unsubmitted",
    )

    def __init__(self, queues: RequestOutputQueues, requests: Iterable[TokenRequest]) -> None:
        self._queues = queues
        self._unsubmitted = deque(requests)
        self._unadmitted: set[str] = set()
        self._open: set[str] = set()
        self._observers: dict[str, SequenceObserver] = {}
        self._outputs: dict[str, list[TokenOutput]] = {}  # not taken yet, in order of arrival
        self._started: set[str] = set()  # the sequences whose first token was taken
        self._error: ServiceError | None = None
        self._reader: asyncio.Future[None] | None = None

    async def admitted(self) -> None:
        """Submit the requests and return when the engine has admitted them. Raises the error with
        which the engine refuses one of them."""
        self._submit()
        while self._unadmitted and self._error is None:
            await self._arrival()
        if self._unadmitted and self._error is not None:
            self._raise(self._error)

    def __aiter__(self) -> OutputQueue:
        return self

    async def __anext__(self) -> TokenOutput:
        outputs = self._outputs
        if not outputs:
            self._submit()
        while not outputs:
            if self._error is not None:
                self._raise(self._error)
            if not self._open:
                raise StopAsyncIteration
            try:
                await self._arrival()
            except asyncio.CancelledError:  # abort like a generator, even without `aclose`
                self._abort_all()
                raise
        output = self._take()
        observer = self._observers.get(output.id)
        if observer is not None:
            observer.observe(output)
        if output.finish is not None:
            self._close(output.id)
        return output

    def abort(self, request_id: str) -> None:
        """Drop one request; no more output of it follows."""
        self._outputs.pop(request_id, None)
        if request_id in self._queues.streams and request_id in self._open:
            self._queues.abort(request_id)
        self._close(request_id)

    async def aclose(self) -> None:
        """Abort the requests that have not finished."""
        self._abort_all()

    def admit(self, request_id: str) -> None:
        self._unadmitted.discard(request_id)
        if not self._unadmitted:
            self._wake()

    def put(self, output: TokenOutput) -> None:
        waiting = self._outputs.get(output.id)
        if waiting is None:
            self._outputs[output.id] = [output]
            self._wake()
        else:
            waiting.append(output)

    def fail(self, error: ServiceError) -> None:
        """End the whole stream with an error. The unfinished requests are aborted when the stream
        is closed."""
        self._error = error
        self._wake()

    def _abort_all(self) -> None:
        self._unsubmitted.clear()
        for request_id in tuple(self._open):
            self.abort(request_id)

    def _submit(self) -> None:
        """Submit as many of the remaining requests as may be open at the same time."""
        queues, unsubmitted = self._queues, self._unsubmitted
        if not unsubmitted:
            return
        room = queues.most_open() - len(self._open)
        while unsubmitted and room > 0:
            request = unsubmitted.popleft()
            assert request.id not in queues.streams, "request ids are unique"
            queues.streams[request.id] = self
            self._open.add(request.id)
            self._unadmitted.add(request.id)
            try:
                queues.submit(request, unsubmitted[0] if unsubmitted else None)
            except ServiceError as error:
                del queues.streams[request.id]
                self._raise(error)
            observer = None if queues.observer is None else queues.observer.sequence()
            if observer is not None:
                self._observers[request.id] = observer
            room -= 1

    def _take(self) -> TokenOutput:
        """Return the outputs of the sequence that has waited longest, coalesced into one output."""
        request_id = next(iter(self._outputs))
        outputs = self._outputs.pop(request_id)
        end = len(outputs)
        if end == 1 and request_id in self._started:
            return outputs[0]
        if request_id not in self._started:
            for index, output in enumerate(outputs):
                if output.tokens or output.finish:
                    self._started.add(request_id)
                    end = index + 1
                    break
        if end > 1 and outputs[end - 1].finish in ("error", "abort"):
            end -= 1
        if end < len(outputs):
            self._outputs[request_id] = outputs[end:]
        return outputs[0] if end == 1 else coalesced(outputs[:end])

    def _close(self, request_id: str) -> None:
        """Forget a sequence and submit the requests that may be open now."""
        self._open.discard(request_id)
        self._queues.streams.pop(request_id, None)
        observer = self._observers.pop(request_id, None)
        if observer is not None:
            observer.end()
        if self._unsubmitted and self._error is None:
            self._submit()

    def _raise(self, error: ServiceError) -> None:
        if self._queues.observer is not None:
            self._queues.observer.failed(error)
        raise error

    def _arrival(self) -> asyncio.Future[None]:
        """Return a future that is done at the next output, admission or error."""
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():  # the reader may have been cancelled
            reader.set_result(None)
