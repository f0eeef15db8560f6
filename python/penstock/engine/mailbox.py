"""Where the chunks of in-flight requests wait for their readers, in one asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from penstock.base.errors import ServiceError
from penstock.engine.joining import joined
from penstock.engine.types import TokenChunk, TokenRequest


class Mailboxes:
    """One mailbox a request. A mailbox is bounded by its request's `max_tokens`.

    `submit` hands a request to the engine; `abort` tells it that nobody reads any more.
    """

    def __init__(
        self, submit: Callable[[TokenRequest], None], abort: Callable[[str], None]
    ) -> None:
        self._submit = submit
        self._abort = abort
        self._open: dict[str, _Mailbox] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Submit and yield the chunks; aborts if closed before the last one. What came while the
        reader was busy is joined, so that a slow reader has fewer chunks to look at; but nothing
        joins the first one of the answer, whose time tells when the prompt was done."""
        mailbox = _Mailbox()
        assert request.id not in self._open, "request ids are unique"
        self._open[request.id] = mailbox
        ended = False
        try:
            self._submit(request)
            while not ended:
                while not mailbox.ready:
                    await mailbox.arrival()
                chunk = mailbox.take()
                ended = chunk.finish is not None
                yield chunk
        except ServiceError:
            ended = True
            raise
        finally:
            del self._open[request.id]
            if not ended:
                self._abort(request.id)

    def deliver(self, chunks: Iterable[TokenChunk]) -> None:
        """Put chunks into their mailboxes; those of requests that were closed are dropped."""
        find = self._open.get
        for chunk in chunks:
            mailbox = find(chunk.id)
            if mailbox is not None:
                mailbox.put(chunk)

    def fail(self, request_id: str, error: ServiceError) -> None:
        """End one request with an error."""
        mailbox = self._open.get(request_id)
        if mailbox is not None:
            mailbox.fail(error)

    def fail_all(self, make_error: Callable[[], ServiceError]) -> None:
        """End every open request with an error of its own."""
        for mailbox in self._open.values():
            mailbox.fail(make_error())


class _Mailbox:
    """The chunks of one request that its reader has not taken."""

    __slots__ = ("_begun", "_chunks", "_error", "_reader")

    def __init__(self) -> None:
        self._begun = False
        self._chunks: list[TokenChunk] = []
        self._error: ServiceError | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, chunk: TokenChunk) -> None:
        self._chunks.append(chunk)
        self._wake()

    def fail(self, error: ServiceError) -> None:
        self._error = error
        self._wake()

    def arrival(self) -> asyncio.Future[None]:
        """Done when it may be `ready`."""
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    def take(self) -> TokenChunk:
        """What has come, once `ready`. Raises the error that ended the request."""
        chunks, end = self._chunks, len(self._chunks)
        if not chunks:
            assert self._error is not None
            raise self._error
        if not self._begun:
            begins = [index for index, chunk in enumerate(chunks) if chunk.tokens or chunk.finish]
            if begins:
                self._begun, end = True, begins[0] + 1
        if end > 1 and chunks[end - 1].finish in ("error", "abort"):
            end -= 1
        self._chunks = chunks[end:]
        return chunks[0] if end == 1 else joined(chunks[:end])

    @property
    def ready(self) -> bool:
        """Whether there is something to take."""
        return bool(self._chunks) or self._error is not None

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():  # it may have been cancelled
            reader.set_result(None)
