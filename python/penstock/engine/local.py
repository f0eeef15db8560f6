"""Runs an engine in a thread of the calling process, for embedded use and tests."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from penstock.base.errors import EngineFault, ServiceError
from penstock.config import EngineSettings
from penstock.engine.load import load_core
from penstock.engine.output_coalescing import OutputCoalescer
from penstock.engine.output_queues import OutputQueue, RequestOutputQueues
from penstock.engine.protocol import IDLE_S, Core
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
    StepOutput,
    TokenOutput,
    TokenRequest,
)
from penstock.engine.weight_orders import WeightOrder, WeightsState
from penstock.grammar.vocabulary import Vocabulary

log = logging.getLogger(__name__)

_T = TypeVar("_T")
Command = Callable[[Core], None]
CLOSED: Final = "the engine was closed"


class LocalEngine:
    """An `Engine` that runs a core in one thread, for callers in one asyncio loop.

    Commands reach the thread through one queue, and outputs return through the loop. After an
    exception in a step, and after `close`, all open and later requests end with EngineFault.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._coalescer = OutputCoalescer()
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._output_queues = RequestOutputQueues(
            lambda r, _: self._submit(r.id, lambda core: self._generate(core, r)),
            self._abort,
            lambda: 2 * core.info.max_num_seqs,  # keeps the engine busy and its queue short
        )
        self._request_queues = MediaRequestQueues(
            lambda r: self._submit(r.id, lambda core: core.embed(r)),
            lambda r: self._submit(r.id, lambda core: core.speak(r)),
            lambda r: self._submit(r.id, lambda core: core.paint(r)),
            self._abort,
        )
        self._asked: set[asyncio.Future[Any]] = set()
        self._fault: str | None = None
        core.call_when_ready(lambda: self._commands.put(_wake_thread))
        self._thread = threading.Thread(target=self._run, name="penstock-engine", daemon=True)
        self._thread.start()

    @classmethod
    async def start(cls, settings: EngineSettings) -> LocalEngine:
        """Load a model in a thread and return an engine that serves it. Raises ModelError."""
        core = await asyncio.to_thread(load_core, settings)
        return cls(core)

    @property
    def info(self) -> EngineInfo:
        return self._core.info

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers."""
        return self._core.report

    def generate(self, *requests: TokenRequest) -> OutputQueue:
        return self._output_queues.generate(*requests)

    def embed(self, request: EmbedRequest) -> AsyncIterator[EmbedOutput]:
        return self._request_queues.embeddings.outputs(request)

    def speak(self, request: SpeechRequest) -> AsyncIterator[SpeechOutput]:
        return self._request_queues.speech.outputs(request)

    def paint(self, request: ImageRequest) -> AsyncIterator[ImageOutput]:
        return self._request_queues.images.outputs(request)

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        self._commands.put(lambda core: core.set_tokenizer(vocabulary))

    async def add_adapter(self, source: AdapterSource) -> AdapterState:
        def ask(core: Core, answer: asyncio.Future[AdapterState]) -> None:
            loaded = core.add_adapter(source)
            loaded.add_done_callback(lambda done: self._call(_copy_if_waiting, answer, done))

        return await self._ask(ask)

    async def retire_adapter(self, revision: str) -> None:
        self._commands.put(lambda core: core.retire_adapter(revision))

    async def adapters(self) -> tuple[AdapterState, ...]:
        def ask(core: Core, answer: asyncio.Future[tuple[AdapterState, ...]]) -> None:
            self._call(_set_result_if_waiting, answer, core.adapters())

        return await self._ask(ask)

    async def change_weights(self, order: WeightOrder) -> WeightsState:
        def ask(core: Core, answer: asyncio.Future[WeightsState]) -> None:
            made = core.change_weights(order)
            made.add_done_callback(lambda done: self._call(_copy_if_waiting, answer, done))

        return await self._ask(ask)

    async def gauges(self) -> EngineGauges:
        def ask(core: Core, answer: asyncio.Future[EngineGauges]) -> None:
            self._call(_set_result_if_waiting, answer, core.gauges())

        return await self._ask(ask)

    async def close(self) -> None:
        """Stop after the current step and free the model. Open requests end with EngineFault."""
        self._fault = self._fault or CLOSED
        self._commands.put(None)
        try:
            await asyncio.to_thread(self._thread.join)
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            self._thread.join()
        self._fail_all(CLOSED)
        self._core.close()

    def _submit(self, request_id: str, submit: Command) -> None:
        self._check_serving()

        def command(core: Core) -> None:
            try:
                submit(core)
            except ServiceError as error:
                self._call(self._output_queues.fail, request_id, error)
                self._call(self._request_queues.fail, request_id, error)

        self._commands.put(command)

    def _generate(self, core: Core, request: TokenRequest) -> None:
        core.submit(request)
        self._coalescer.add(request)
        self._call(self._output_queues.admit, request.id)

    def _ask(self, ask: Callable[[Core, asyncio.Future[_T]], None]) -> asyncio.Future[_T]:
        """Call `ask` in the engine's thread. Return the future that `ask` completes. If the engine
        has failed or fails meanwhile, this method raises EngineFault, or the future does."""
        self._check_serving()
        answer: asyncio.Future[_T] = self._loop.create_future()
        self._asked.add(answer)
        answer.add_done_callback(self._asked.discard)
        self._commands.put(lambda core: ask(core, answer))
        return answer

    def _check_serving(self) -> None:
        if self._fault is not None:
            raise EngineFault(self._fault)

    def _abort(self, request_id: str) -> None:
        def command(core: Core) -> None:
            core.abort(request_id)
            self._coalescer.forget(request_id)

        self._commands.put(command)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        try:
            while self._run_commands():
                self._call(self._deliver, self._coalescer.coalesce(self._core.step()))
        except BaseException:  # a panic in Rust is not an Exception
            log.exception("the engine failed in a step")
            self._fault = "the engine failed and was stopped"
            self._call(self._fail_all, "the engine failed")

    def _run_commands(self) -> bool:
        """Execute the queued commands and return True when there is work. While there is none,
        prepare for later steps, then block. Return False if the thread must end."""
        patience_s: float | None = IDLE_S
        while True:
            busy = self._core.has_work
            try:
                command = self._commands.get(not busy, patience_s)
            except queue.Empty:
                if busy:
                    return True
                patience_s = 0 if self._core.prepare() else None
                continue
            if command is None:
                return False
            command(self._core)

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        self._output_queues.deliver(c for c in outputs if isinstance(c, TokenOutput))
        self._request_queues.deliver(outputs)

    def _fail_all(self, reason: str) -> None:
        self._output_queues.fail_all(lambda: EngineFault(reason))
        self._request_queues.fail_all(lambda: EngineFault(reason))
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(EngineFault(reason))


def _wake_thread(core: Core) -> None:
    """Do nothing. As a command, this only wakes the thread, because the core has work now."""


def _set_result_if_waiting(answer: asyncio.Future[_T], result: _T) -> None:
    if not answer.done():
        answer.set_result(result)


def _copy_if_waiting(answer: asyncio.Future[_T], done: Future[_T]) -> None:
    error = done.exception()
    if answer.done():
        return
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)
