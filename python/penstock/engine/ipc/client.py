"""The API process's end of the engine socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from penstock.base.errors import EngineFault, ServiceError, Unavailable
from penstock.engine.ipc.messages import (
    Abort,
    AdapterAdded,
    Adapters,
    AddAdapter,
    Admitted,
    AskAdapters,
    AskGauges,
    ChangeWeights,
    EmbedOutputs,
    FrameReader,
    Gauges,
    Hello,
    ImageOutputs,
    Refused,
    RetireAdapter,
    SetTokenizer,
    SpeechOutputs,
    SubmitEmbed,
    SubmitEncoder,
    SubmitImages,
    SubmitSpeech,
    ToEngine,
    TokenOutputs,
    WeightsChanged,
    frame,
    from_engine_decoder,
)
from penstock.engine.output_queues import EngineObserver, OutputQueue, RequestOutputQueues
from penstock.engine.request_queues import MediaRequestQueues
from penstock.engine.types import (
    AdapterSource,
    AdapterState,
    EmbedOutput,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    ImageOutput,
    ImageRequest,
    SpeechOutput,
    SpeechRequest,
    TokenRequest,
)
from penstock.engine.weight_orders import WeightOrder, WeightsState
from penstock.grammar.vocabulary import Vocabulary

log = logging.getLogger(__name__)

RECONNECT_INTERVAL_S = 0.02


class RefusedRequest(ServiceError):
    """The error of a request that the engine refused, with the status that the engine gave it."""

    def __init__(self, refusal: Refused) -> None:
        super().__init__(
            refusal.message,
            field=refusal.field,
            code=refusal.code,
            retry_after_s=refusal.retry_after_s,
        )
        self.status, self.kind = refusal.status, refusal.kind


class _Link(asyncio.Protocol):
    """One connection to the engine. All frames of one read are handled before a reader of their
    outputs runs."""

    def __init__(
        self, opened: Callable[[asyncio.Transport], None], handle: Callable[[bytes], None]
    ) -> None:
        self._opened = opened
        self._handle = handle
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own class
        self._opened(self._transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._handle(data)
        except ValueError as error:  # msgspec's errors are ValueErrors, too
            log.warning("engine connection: %s", error)
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            log.warning("engine connection: %s", error)
        if not self.lost.done():
            self.lost.set_result(None)


class EngineClient:
    """The `Engine` behind a Unix socket. It connects when the engine serves, and again after the
    engine was restarted. `observer`: sees the outputs as their readers take them, and the errors.

    If the engine dies, requests in flight end with EngineFault, and new requests are refused with
    Unavailable until the engine serves again.
    """

    def __init__(self, socket_path: str, observer: EngineObserver | None = None) -> None:
        self._path = socket_path
        self._info: EngineInfo | None = None
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader()
        self._submits = SubmitEncoder()
        self._output_queues = RequestOutputQueues(
            self._submit, self._abort, self._most_open, observer
        )
        self._request_queues = MediaRequestQueues(
            lambda r: self._send(SubmitEmbed(r)),
            lambda r: self._send(SubmitSpeech(r)),
            lambda r: self._send(SubmitImages(r)),
            self._abort,
            observer,
        )
        self._vocabulary: Vocabulary | None = None
        self._tickets = itertools.count()
        self._answers: dict[str, tuple[asyncio.Future[Any], str]] = {}
        self._adapter_waiters: list[asyncio.Future[tuple[AdapterState, ...]]] = []
        self._gauge_waiters: list[asyncio.Future[EngineGauges]] = []
        self._connected = asyncio.Event()
        self._task = asyncio.create_task(self._keep_connected(), name="engine-client")

    @property
    def info(self) -> EngineInfo:
        """The engine of the last connection. Raises Unavailable before the first connection."""
        if self._info is None:
            raise Unavailable("the engine is starting", retry_after_s=1)
        return self._info

    @property
    def serving(self) -> bool:
        """Whether the engine would accept a request now."""
        return self._connected.is_set()

    @property
    def in_flight(self) -> int:
        return len(self._output_queues) + len(self._request_queues)

    async def wait_ready(self) -> EngineInfo:
        """Wait for a connection to a loaded engine and return the engine's info."""
        await self._connected.wait()
        return self.info

    def generate(self, *requests: TokenRequest) -> OutputQueue:
        return self._output_queues.generate(*requests)

    def embed(self, request: EmbedRequest) -> AsyncIterator[EmbedOutput]:
        return self._request_queues.embeddings.outputs(request)

    def speak(self, request: SpeechRequest) -> AsyncIterator[SpeechOutput]:
        return self._request_queues.speech.outputs(request)

    def paint(self, request: ImageRequest) -> AsyncIterator[ImageOutput]:
        return self._request_queues.images.outputs(request)

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        if self._vocabulary is None:
            self._vocabulary = vocabulary
            if self._connected.is_set():
                self._send(SetTokenizer(vocabulary))

    async def add_adapter(self, source: AdapterSource) -> AdapterState:
        ticket = f"adapter-{next(self._tickets)}"
        loaded: AdapterState = await self._ask(
            ticket,
            AddAdapter(ticket, source),
            "the engine stopped while it loaded this adapter",
        )
        return loaded

    async def change_weights(self, order: WeightOrder) -> WeightsState:
        ticket = f"weights-{next(self._tickets)}"
        state: WeightsState = await self._ask(
            ticket, ChangeWeights(ticket, order), "the engine stopped before it answered"
        )
        return state

    async def _ask(self, ticket: str, message: ToEngine, lost: str) -> Any:
        """Send a message and return the result of its answer, which has the id `ticket`. `lost`:
        the error if the engine dies before."""
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send(message)
        self._answers[ticket] = waiter, lost
        try:
            return await waiter
        finally:
            self._answers.pop(ticket, None)

    async def retire_adapter(self, revision: str) -> None:
        self._send(RetireAdapter(revision))

    async def adapters(self) -> tuple[AdapterState, ...]:
        waiter: asyncio.Future[tuple[AdapterState, ...]] = (
            asyncio.get_running_loop().create_future()
        )
        self._send(AskAdapters())
        self._adapter_waiters.append(waiter)
        return await waiter

    async def gauges(self) -> EngineGauges:
        waiter: asyncio.Future[EngineGauges] = asyncio.get_running_loop().create_future()
        self._send(AskGauges())
        self._gauge_waiters.append(waiter)
        return await waiter

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._fail_in_flight("the engine was shut down")

    def _send(self, message: ToEngine) -> None:
        self._write(lambda: frame(message))

    def _submit(self, request: TokenRequest, following: TokenRequest | None) -> None:
        self._write(lambda: self._submits.frame(request, following))

    def _write(self, encode: Callable[[], bytes]) -> None:
        # A dying engine may still accept a connection and then send nothing.
        if self._transport is None or not self._connected.is_set():
            raise Unavailable("the engine is starting or restarting", retry_after_s=1)
        self._transport.write(encode())

    def _abort(self, request_id: str) -> None:
        with contextlib.suppress(Unavailable):
            self._send(Abort(request_id))

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                transport, link = await loop.create_unix_connection(
                    lambda: _Link(self._open, self._receive), self._path
                )
            except OSError:
                await asyncio.sleep(RECONNECT_INTERVAL_S)
                continue
            try:
                await link.lost
            finally:
                transport.close()
                self._fail_in_flight("the engine stopped while it worked on this request")

    def _open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._frames = FrameReader()
        self._submits = SubmitEncoder()

    def _receive(self, data: bytes) -> None:
        """Handle all frames of one read. The readers of their outputs run afterwards, so that
        outputs of several steps for one sequence reach its reader together."""
        for body in self._frames.feed(data):
            self._handle(body)

    def _most_open(self) -> int:
        """Return how many sequences of one call may be open: twice the engine's rows, which keeps
        the engine busy and its queue short."""
        return 2 * self.info.max_num_seqs

    def _handle(self, body: bytes) -> None:
        match from_engine_decoder.decode(body):
            case TokenOutputs(outputs):
                self._output_queues.deliver(outputs)
            case Admitted(request_id):
                self._output_queues.admit(request_id)
            case EmbedOutputs(embedded):
                self._request_queues.deliver(embedded)
            case SpeechOutputs(spoken):
                self._request_queues.deliver(spoken)
            case ImageOutputs(painted):
                self._request_queues.deliver(painted)
            case Hello(info):
                self._info = info
                if not self._connected.is_set():
                    self._connected.set()
                    if self._vocabulary is not None:
                        self._send(SetTokenizer(self._vocabulary))
            case Refused() as refusal:
                self._output_queues.fail(refusal.id, RefusedRequest(refusal))
                self._request_queues.fail(refusal.id, RefusedRequest(refusal))
                answer, _ = self._answers.get(refusal.id, (None, ""))
                if answer is not None and not answer.done():
                    answer.set_exception(RefusedRequest(refusal))
            case AdapterAdded(ticket, result) | WeightsChanged(ticket, result):
                answer, _ = self._answers.get(ticket, (None, ""))
                if answer is not None and not answer.done():
                    answer.set_result(result)
            case Adapters(states):
                asked = self._adapter_waiters.pop(0)
                if not asked.done():
                    asked.set_result(states)
            case Gauges(gauges):
                waiter = self._gauge_waiters.pop(0)
                if not waiter.done():
                    waiter.set_result(gauges)

    def _fail_in_flight(self, reason: str) -> None:
        self._transport = None
        self._connected.clear()
        self._output_queues.fail_all(lambda: EngineFault(reason))
        self._request_queues.fail_all(lambda: EngineFault(reason))
        for answer, lost in self._answers.values():
            if not answer.done():
                answer.set_exception(EngineFault(lost))
        for asked in self._adapter_waiters:
            if not asked.done():
                asked.set_exception(Unavailable(reason, retry_after_s=1))
        self._adapter_waiters.clear()
        for waiter in self._gauge_waiters:
            if not waiter.done():
                waiter.set_exception(Unavailable(reason, retry_after_s=1))
        self._gauge_waiters.clear()
