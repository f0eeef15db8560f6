"""The API process's end of the engine socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from penstock.base.errors import EngineFault, ServiceError, Unavailable
from penstock.engine.mailbox import Mailboxes
from penstock.engine.types import EngineGauges, EngineInfo, TokenChunk, TokenRequest
from penstock.engine.wire import (
    Abort,
    AskGauges,
    Chunks,
    FrameReader,
    Gauges,
    Hello,
    Refused,
    Submit,
    Teach,
    ToEngine,
    frame,
    from_engine_decoder,
)
from penstock.models.vocabulary import Vocabulary

log = logging.getLogger(__name__)

RECONNECT_INTERVAL_S = 0.02
READ_BYTES = 256 * 1024


class RefusedRequest(ServiceError):
    """The engine did not admit a request; carries the status it gave."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__(
            refusal.message,
            field=refusal.field,
            code=refusal.code,
            retry_after_s=refusal.retry_after_s,
        )
        self.status, self.kind = refusal.status, refusal.kind


class EngineClient:
    """An engine behind a Unix socket. Connects when the engine serves, and again after it died.

    Requests in flight when the engine dies end with EngineFault; requests made before it is back
    are refused with Unavailable.
    """

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._info: EngineInfo | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._mailboxes = Mailboxes(lambda r: self._send(Submit(r)), self._abort)
        self._vocabulary: Vocabulary | None = None
        self._gauge_waiters: list[asyncio.Future[EngineGauges]] = []
        self._connected = asyncio.Event()
        self._task = asyncio.create_task(self._keep_connected(), name="engine-client")

    @property
    def info(self) -> EngineInfo:
        """Of the engine last connected to. Raises Unavailable before the first time."""
        if self._info is None:
            raise Unavailable("the engine is starting", retry_after_s=1)
        return self._info

    @property
    def serving(self) -> bool:
        """Whether a request would be taken now."""
        return self._connected.is_set()

    @property
    def in_flight(self) -> int:
        return len(self._mailboxes)

    async def wait_ready(self) -> EngineInfo:
        """Return when connected to a loaded engine."""
        await self._connected.wait()
        return self.info

    def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        return self._mailboxes.generate(request)

    def teach(self, vocabulary: Vocabulary) -> None:
        if self._vocabulary is None:
            self._vocabulary = vocabulary
            if self._connected.is_set():
                self._send(Teach(vocabulary))

    async def gauges(self) -> EngineGauges:
        waiter: asyncio.Future[EngineGauges] = asyncio.get_running_loop().create_future()
        self._send(AskGauges())
        self._gauge_waiters.append(waiter)
        return await waiter

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._lose("the engine was shut down")

    def _send(self, message: ToEngine) -> None:
        if self._writer is None:
            raise Unavailable("the engine is starting or restarting", retry_after_s=1)
        self._writer.write(frame(message))

    def _abort(self, request_id: str) -> None:
        with contextlib.suppress(Unavailable):
            self._send(Abort(request_id))

    async def _keep_connected(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path)
            except OSError:
                await asyncio.sleep(RECONNECT_INTERVAL_S)
                continue
            self._writer = writer
            try:
                await self._read(reader)
            except (OSError, ValueError) as error:
                log.warning("engine connection: %s", error)
            finally:
                writer.close()
                self._lose("the engine stopped while it worked on this request")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader()
        while data := await reader.read(READ_BYTES):
            for body in frames.feed(data):
                self._handle(body)

    def _handle(self, body: bytes) -> None:
        match from_engine_decoder.decode(body):
            case Chunks(chunks):
                for chunk in chunks:
                    self._mailboxes.deliver(chunk)
            case Hello(info):
                self._info = info
                if self._vocabulary is not None:
                    self._send(Teach(self._vocabulary))
                self._connected.set()
            case Refused() as refusal:
                self._mailboxes.fail(refusal.id, RefusedRequest(refusal))
            case Gauges(gauges):
                waiter = self._gauge_waiters.pop(0)
                if not waiter.done():
                    waiter.set_result(gauges)

    def _lose(self, reason: str) -> None:
        self._writer = None
        self._connected.clear()
        self._mailboxes.fail_all(lambda: EngineFault(reason))
        for waiter in self._gauge_waiters:
            if not waiter.done():
                waiter.set_exception(Unavailable(reason, retry_after_s=1))
        self._gauge_waiters.clear()
