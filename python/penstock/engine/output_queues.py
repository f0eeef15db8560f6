"""Where the outputs of in-flight requests wait for their readers, in one asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

from penstock.base.errors import ServiceError
from penstock.engine.output_coalescing import coalesced
from penstock.engine.protocol import Tap
from penstock.engine.types import TokenOutput, TokenRequest

if TYPE_CHECKING:
    from penstock._native import Lanes


class RequestOutputQueues:
    """One queue a request. A queue is bounded by its request's `max_tokens`.

    `submit` hands a request to the engine; `abort` tells it that nobody reads any more. `lanes`:
    where the outputs come from, less what its lanes took; None where it has none.
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
        self._open: dict[str, _RequestOutputQueue] = {}
        self._filled: list[_RequestOutputQueue] = []

    def __len__(self) -> int:
        return len(self._open)

    async def generate(
        self, request: TokenRequest, tap: Tap | None = None
    ) -> AsyncIterator[TokenOutput]:
        """Submit and yield the outputs; aborts if closed before the last one. What came while the
        reader was busy is coalesced, so that a slow reader has fewer outputs to look at; but
        nothing
        joins the first one of the answer, whose time tells when the prompt was done."""
        queue = _RequestOutputQueue(request.id, tap, self._lanes)
        assert request.id not in self._open, "request ids are unique"
        self._open[request.id] = queue
        ended = False
        try:
            self._submit(request)
            while not ended:
                while not queue.ready:
                    await queue.arrival()
                output = queue.take()
                ended = output.finish is not None
                yield output
        except ServiceError:
            ended = True
            raise
        finally:
            del self._open[request.id]
            if not ended:  # before the tap is called, which may fail
                self._abort(request.id)
            queue.leave_lane()

    def deliver(self, outputs: Iterable[TokenOutput]) -> None:
        """Hand outputs on to their readers; those of requests that were closed are dropped."""
        self.put(outputs)
        self.wake_readers()

    def put(self, outputs: Iterable[TokenOutput]) -> None:
        """As `deliver`, but nobody looks at them before `wake_readers`."""
        find, filled = self._open.get, self._filled
        for output in outputs:
            queue = find(output.id)
            if queue is not None:
                if not queue.outputs:
                    filled.append(queue)
                queue.outputs.append(output)

    def wake_readers(self) -> None:
        """Show the taps what was put, and wake the readers of what they leave."""
        filled, self._filled = self._filled, []
        for queue in filled:
            queue.wake_readers()

    def fail(self, request_id: str, error: ServiceError) -> None:
        """End one request with an error."""
        queue = self._open.get(request_id)
        if queue is not None:
            queue.fail(error)

    def fail_all(self, make_error: Callable[[], ServiceError]) -> None:
        """End every open request with an error of its own."""
        for queue in self._open.values():
            queue.fail(make_error())


class _RequestOutputQueue:
    """The outputs of one request that nobody has looked at."""

    __slots__ = ("_begun", "_error", "_id", "_in_lane", "_lanes", "_reader", "_tap", "outputs")

    def __init__(self, request_id: str, tap: Tap | None, lanes: Lanes | None) -> None:
        self.outputs: list[TokenOutput] = []
        self._id = request_id
        self._tap = tap
        self._lanes = lanes
        self._in_lane = False
        self._begun = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    def wake_readers(self) -> None:
        """There are new outputs. A reader that is busy looks for itself when it comes back."""
        try:
            self.leave_lane()
            reader = self._reader
            if reader is None or reader.done() or self._tap_takes():
                return
        except Exception as error:  # of this request alone: it is raised to its reader
            self.outputs = []
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

    def take(self) -> TokenOutput:
        """What has come, once `ready`. Raises the error that ended the request."""
        outputs, end = self.outputs, len(self.outputs)
        if not outputs:
            assert self._error is not None
            raise self._error
        if not self._begun:
            begins = [
                index for index, output in enumerate(outputs) if output.tokens or output.finish
            ]
            if begins:
                self._begun, end = True, begins[0] + 1
        if end > 1 and outputs[end - 1].finish in ("error", "abort"):
            end -= 1
        self.outputs = outputs[end:]
        return outputs[0] if end == 1 else coalesced(outputs[:end])

    @property
    def ready(self) -> bool:
        """Whether there is something to take."""
        return bool(self.outputs) or self._error is not None

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
        outputs = self.outputs
        if self._tap is None or not self._begun or outputs[-1].finish is not None:
            return False
        rest = self._tap(outputs[0] if len(outputs) == 1 else coalesced(outputs))
        self.outputs = [] if rest is None else [rest]
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
