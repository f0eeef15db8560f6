"""Where the chunks of in-flight requests wait for their readers, in one asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

from penstock.base.errors import ServiceError
from penstock.engine.joining import joined
from penstock.engine.protocol import Tap
from penstock.engine.types import TokenChunk, TokenRequest

if TYPE_CHECKING:
    from penstock._native import Lanes


class Mailboxes:
    """One mailbox a request. A mailbox is bounded by its request's `max_tokens`.

    `submit` hands a request to the engine; `abort` tells it that nobody reads any more. `lanes`:
    where the chunks come from, less what its lanes took; None where it has none.
    """

    def __init__(
        self,
        submit: Callable[[TokenRequest], None],
        abort: Callable[[str], None],
        lanes: Lanes | None = None,
    ) -> None:
        self._submit = submit
        self._abort = abort
        self._lanes = lanes
        self._open: dict[str, _Mailbox] = {}
        self._filled: list[_Mailbox] = []

    def __len__(self) -> int:
        return len(self._open)

    async def generate(
        self, request: TokenRequest, tap: Tap | None = None
    ) -> AsyncIterator[TokenChunk]:
        """Submit and yield the chunks; aborts if closed before the last one. What came while the
        reader was busy is joined, so that a slow reader has fewer chunks to look at; but nothing
        joins the first one of the answer, whose time tells when the prompt was done."""
        mailbox = _Mailbox(request.id, tap, self._lanes)
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
            if not ended:  # before the tap is called, which may fail
                self._abort(request.id)
            mailbox.leave_lane()

    def deliver(self, chunks: Iterable[TokenChunk]) -> None:
        """Hand chunks on to their readers; those of requests that were closed are dropped."""
        self.put(chunks)
        self.settle()

    def put(self, chunks: Iterable[TokenChunk]) -> None:
        """As `deliver`, but nobody looks at them before `settle`."""
        find, filled = self._open.get, self._filled
        for chunk in chunks:
            mailbox = find(chunk.id)
            if mailbox is not None:
                if not mailbox.chunks:
                    filled.append(mailbox)
                mailbox.chunks.append(chunk)

    def settle(self) -> None:
        """Show the taps what was put, and wake the readers of what they leave."""
        filled, self._filled = self._filled, []
        for mailbox in filled:
            mailbox.settle()

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
    """The chunks of one request that nobody has looked at."""

    __slots__ = ("_begun", "_error", "_id", "_in_lane", "_lanes", "_reader", "_tap", "chunks")

    def __init__(self, request_id: str, tap: Tap | None, lanes: Lanes | None) -> None:
        self.chunks: list[TokenChunk] = []
        self._id = request_id
        self._tap = tap
        self._lanes = lanes
        self._in_lane = False
        self._begun = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    def settle(self) -> None:
        """There are new chunks. A reader that is busy looks for itself when it comes back."""
        try:
            self.leave_lane()
            reader = self._reader
            if reader is None or reader.done() or self._tap_takes():
                return
        except Exception as error:  # of this request alone: it is raised to its reader
            self.chunks = []
            self.fail(error)
            return
        self._wake()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._wake()

    def arrival(self) -> asyncio.Future[None]:
        """Done when it may be `ready`."""
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    def take(self) -> TokenChunk:
        """What has come, once `ready`. Raises the error that ended the request."""
        chunks, end = self.chunks, len(self.chunks)
        if not chunks:
            assert self._error is not None
            raise self._error
        if not self._begun:
            begins = [index for index, chunk in enumerate(chunks) if chunk.tokens or chunk.finish]
            if begins:
                self._begun, end = True, begins[0] + 1
        if end > 1 and chunks[end - 1].finish in ("error", "abort"):
            end -= 1
        self.chunks = chunks[end:]
        return chunks[0] if end == 1 else joined(chunks[:end])

    @property
    def ready(self) -> bool:
        """Whether there is something to take."""
        return bool(self.chunks) or self._error is not None

    def leave_lane(self) -> None:
        """Nothing more goes through a lane. Harmless where nothing does."""
        if self._in_lane:
            assert self._lanes is not None
            assert self._tap is not None
            self._in_lane = False
            self._lanes.close(self._id)
            self._tap.leave()

    def _tap_takes(self) -> bool:
        """Show the tap what has come, as far as it may see that. False: something is left."""
        chunks = self.chunks
        if self._tap is None or not self._begun or chunks[-1].finish is not None:
            return False
        rest = self._tap(chunks[0] if len(chunks) == 1 else joined(chunks))
        self.chunks = [] if rest is None else [rest]
        if rest is None:
            self._enter_lane()
        return rest is None

    def _enter_lane(self) -> None:
        assert self._tap is not None
        lane = None if self._lanes is None else self._tap.lane()
        if lane is not None:
            assert self._lanes is not None
            self._lanes.open(self._id, lane)
            self._in_lane = True

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():  # it may have been cancelled
            reader.set_result(None)
