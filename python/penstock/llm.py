"""Embedded use: a model in your own process, with the request types of the server.

    from penstock import LLM
    with LLM("smollm2-135m-instruct") as llm:
        answer = llm.chat([{"role": "user", "content": "Hello!"}])
        print(answer.choices[0].parts[0].text)

One background thread runs an asyncio loop with the turn loop in it, and the engine has a thread of
its own; the methods here hand requests over and wait. They may be called from any thread, and the
`async` ones from any asyncio loop.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.live import LiveAdapters
from penstock.adapters.registry import LoadedAdapter
from penstock.agent import AgentLoop, EmbeddingLoop, load_loop
from penstock.base.errors import InvalidRequest, Unavailable
from penstock.config import EngineSettings, read_environment
from penstock.config.limits import check_engine
from penstock.dialog import (
    AdapterGeneration,
    Constraint,
    EmbeddingRequest,
    Event,
    FunctionTool,
    GenerateRequest,
    Limits,
    Message,
    ReasoningPolicy,
    RunFailed,
    Sampling,
    Text,
    ToolPolicy,
)
from penstock.dialog.fold import Answer, FailedRun, Fold
from penstock.engine.adapter_host import AdapterHost, LoadOrder, host_adapters
from penstock.engine.local import LocalEngine
from penstock.generation.embeddings import MAX_INPUTS
from penstock.models.files import ModelFiles
from penstock.models.hub_access import hub_of
from penstock.models.sources import resolve_model

if TYPE_CHECKING:
    from typing_extensions import Unpack

Prompt: TypeAlias = str | Sequence[int]
ChatMessage: TypeAlias = Message | dict[str, str]
_T = TypeVar("_T")
_R = TypeVar("_R", GenerateRequest, EmbeddingRequest)
log = logging.getLogger(__name__)


class Options(TypedDict, total=False):
    """What all methods take beside prompt or messages; see `GenerateRequest`."""

    sampling: Sampling
    max_tokens: int | None
    stop: str | Sequence[str]
    n: int
    top_logprobs: int | None
    ignore_eos: bool
    reasoning: ReasoningPolicy
    tools: Sequence[FunctionTool]
    tool_policy: ToolPolicy
    constraint: Constraint | None
    adapter: str | AdapterGeneration | None


@dataclass(frozen=True, slots=True)
class Host:
    """What answers: the turn loop, how many sequences it runs at once, and how to end it.
    `adapters` None: there is no LoRA runtime."""

    loop: AgentLoop | EmbeddingLoop
    max_seqs: int
    close: Callable[[], Awaitable[None]]
    adapters: AdapterHost | None = None


class LLM:
    """A loaded model. Close it, or use it in a `with` statement.

    `model`: a path, a hub id or a name of the catalogue; `settings`: fields of `EngineSettings`,
    such as `lora=LoraSettings()` for adapters. Raises ModelError, and SettingsError for a setting
    of another type or out of range.

    All methods take the keywords of `Options`. A request that cannot be served raises a
    `ServiceError` (`InvalidRequest`, `FailedRun`) with code and field.
    """

    def __init__(self, model: str | Path = EngineSettings().model, **settings: Any) -> None:  # noqa: B008
        checked = EngineSettings(model=os.fspath(model), **settings)
        check_engine(checked)
        self._open(lambda: _start(checked))

    @classmethod
    def hosted(cls, start: Callable[[], Awaitable[Host]]) -> LLM:
        """An LLM over a host of the caller's making; `start` runs in the background loop."""
        llm = cls.__new__(cls)
        llm._open(start)
        return llm

    def _open(self, start: Callable[[], Awaitable[Host]]) -> None:
        self._thread = _LoopThread()
        weakref.finalize(self, self._thread.stop).atexit = False  # the thread sees to that
        try:
            self._host = self._thread.wait(self._thread.open(start))
        except BaseException:
            self.close()
            raise

    def generate(
        self, prompts: Prompt | Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Answer]:
        """Continue raw prompts: text or token ids. One answer a prompt, in their order."""
        return self.run(_completions(prompts, options))

    def chat(self, messages: Sequence[ChatMessage], **options: Unpack[Options]) -> Answer:
        """Answer a conversation: `Message`s, or dictionaries with role and content."""
        return self.run([_chat(messages, options)])[0]

    def stream(
        self, given: str | Sequence[ChatMessage], **options: Unpack[Options]
    ) -> Iterator[Event]:
        """The events of an answer as they happen, to a prompt or a conversation. Closing the
        iterator early aborts the answer."""
        return self.events(_either(given, options))

    def run(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Answer requests together; the engine batches them. The first failure ends them all."""
        return self._thread.wait(self._answer_all(_checked(requests)))

    def events(self, request: GenerateRequest) -> Iterator[Event]:
        """The events of one request, RunEnded last."""
        inbox: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        (checked,) = _checked([request])
        pump = self._thread.submit(self._pump(checked, inbox.put))
        pump.add_done_callback(lambda _: inbox.put(None))
        try:
            while (event := inbox.get()) is not None:
                yield _unless_failed(event)
            self._thread.result(pump)
        finally:
            pump.cancel()

    async def agenerate(
        self, prompts: Prompt | Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Answer]:
        """As `generate`."""
        return await self.arun(_completions(prompts, options))

    async def achat(self, messages: Sequence[ChatMessage], **options: Unpack[Options]) -> Answer:
        """As `chat`."""
        return (await self.arun([_chat(messages, options)]))[0]

    def astream(
        self, given: str | Sequence[ChatMessage], **options: Unpack[Options]
    ) -> AsyncIterator[Event]:
        """As `stream`."""
        return self.aevents(_either(given, options))

    async def arun(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """As `run`; cancelling it aborts the answers."""
        return await self._thread.wait_async(self._answer_all(_checked(requests)))

    async def aevents(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """As `events`."""
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Event | None] = asyncio.Queue()

        def put(event: Event | None) -> None:
            with suppress(RuntimeError):  # the caller's loop is gone, and with it the reader
                loop.call_soon_threadsafe(inbox.put_nowait, event)

        (checked,) = _checked([request])
        pump = self._thread.submit(self._pump(checked, put))
        pump.add_done_callback(lambda _: put(None))
        try:
            while (event := await inbox.get()) is not None:
                yield _unless_failed(event)
            self._thread.result(pump)
        finally:
            pump.cancel()

    def embed(
        self,
        inputs: Prompt | Sequence[Prompt],
        *,
        truncate: bool = False,
        adapter: str | AdapterGeneration | None = None,
    ) -> npt.NDArray[np.float32]:
        """Vectors [inputs, width] of texts or token ids, by an embedding model. `truncate` keeps
        the start of what is too long, which is an error otherwise."""
        return self._thread.wait(self._embed(inputs, truncate, adapter))

    async def aembed(
        self,
        inputs: Prompt | Sequence[Prompt],
        *,
        truncate: bool = False,
        adapter: str | AdapterGeneration | None = None,
    ) -> npt.NDArray[np.float32]:
        """As `embed`; cancelling it aborts what is not computed yet."""
        return await self._thread.wait_async(self._embed(inputs, truncate, adapter))

    def load_adapter(
        self,
        alias: str,
        folder: str | Path,
        *,
        replace: bool = False,
        expected_generation: str | None = None,
        pinned: bool = False,
    ) -> LoadedAdapter:
        """Load a PEFT folder as the adapter `alias`, or put it in the place of the one that is
        called so; with `expected_generation` only if that is still this one. A `pinned` one stays
        in memory. Raises AdapterRefused; one load goes on at a time."""
        order = LoadOrder(
            alias, str(folder), replace, expected_generation, pinned=pinned, rooted=False
        )
        return self._thread.wait(self._adapters().load(order))

    def unload_adapter(self, alias: str, expected_generation: str | None = None) -> LoadedAdapter:
        """Forget an adapter; answers that use it go on. Raises AdapterRefused."""
        return self._thread.wait(self._adapters().unload(alias, expected_generation))

    def adapters(self) -> tuple[LoadedAdapter, ...]:
        """The adapters that are loaded, () without a LoRA runtime."""
        return self._host.adapters.adapters if self._host.adapters is not None else ()

    def close(self) -> None:
        """Abort what runs, and free the model. May be called again, and from any thread."""
        self._thread.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _adapters(self) -> AdapterHost:
        if self._host.adapters is None:
            raise AdapterRefused(
                "lora_runtime_unavailable",
                "this LLM has no dynamic LoRA runtime; give it lora=LoraSettings()",
            )
        return self._host.adapters

    async def _answer_all(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        widest = max((request.num_sequences for request in requests), default=1)
        # Twice what runs at once keeps the engine busy and its queue short.
        slots = asyncio.Semaphore(max(1, 2 * self._host.max_seqs // max(1, widest)))

        async def answer(request: GenerateRequest) -> Answer:
            fold = Fold()
            async with slots, aclosing(self._host.loop.run(request)) as events:
                async for event in events:
                    fold.add(event)
            return fold.answer

        tasks = [asyncio.ensure_future(answer(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _embed(
        self,
        inputs: Prompt | Sequence[Prompt],
        truncate: bool,
        adapter: str | AdapterGeneration | None,
    ) -> npt.NDArray[np.float32]:
        given = tuple(p if isinstance(p, str) else tuple(p) for p in _several(inputs))
        requests = [
            _typed(
                EmbeddingRequest(given[at : at + MAX_INPUTS], adapter=adapter, truncate=truncate)
            )
            for at in range(0, len(given), MAX_INPUTS)
        ]
        answers = [await self._host.loop.embed(request) for request in requests]
        width = answers[0].width if answers else 0
        data = b"".join(answer.vectors for answer in answers)
        return np.frombuffer(data, "<f4").reshape(len(given), width)

    async def _pump(self, request: GenerateRequest, put: Callable[[Event], None]) -> None:
        async with aclosing(self._host.loop.run(request)) as events:
            async for event in events:
                put(event)


class _LoopThread:
    """An asyncio loop in a thread of its own, and the host that lives in it. It ends with the
    interpreter at the latest: native code must not return into one that is gone."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._host: Host | None = None
        self._pid = os.getpid()
        self._gate = threading.RLock()  # nothing is submitted behind `_end`
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="penstock-llm", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    async def open(self, start: Callable[[], Awaitable[Host]]) -> Host:
        """Start the host, which is closed with this loop."""
        self._host = await start()
        return self._host

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine in the loop. Raises Unavailable once stopped, and in a forked process,
        which has no such thread."""
        if not self._is_here():
            work.close()
            raise Unavailable("this LLM belongs to another process; open one here")
        with self._gate:
            if self._stopping:
                work.close()
                raise Unavailable("this LLM is closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and wait for it; an interrupt of the caller cancels it."""
        future = self.submit(work)
        try:
            return self.result(future)
        finally:
            future.cancel()

    async def wait_async(self, work: Coroutine[Any, Any, _T]) -> _T:
        """As `wait`, for a caller with a loop of its own."""
        future = self.submit(work)
        try:
            await asyncio.wait([asyncio.wrap_future(future)])
            return self.result(future)
        finally:
            future.cancel()

    def result(self, future: Future[_T]) -> _T:
        """What came of work that only `close` may have cancelled: then it raises Unavailable."""
        try:
            return future.result()
        except CancelledError:
            raise Unavailable("this LLM is closed") from None

    def stop(self) -> None:
        """Cancel what runs, close the host, end the thread; all of it later, as a garbage collector
        may call this in a thread that is to end. Harmless twice."""
        if not self._is_here():
            return
        with self._gate:
            if not self._stopping:
                self._stopping = True
                asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    def close(self) -> None:
        """Stop, and return when all has ended."""
        self.stop()
        if self._is_here() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _is_here(self) -> bool:
        """Whether this is the process of the thread; asked before the gate, which another thread
        may have held when this process was forked."""
        return os.getpid() == self._pid

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()
        atexit.unregister(self.close)

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if self._host is not None:
                await self._host.close()
        except Exception:  # the loop's outermost coroutine: nobody else would hear of it
            log.exception("the model was not closed")
        finally:
            self._loop.stop()


async def _start(settings: EngineSettings) -> Host:
    """Load engine and text side at the same time."""
    files = asyncio.ensure_future(asyncio.to_thread(_find_files, settings))
    files.add_done_callback(lambda done: done.cancelled() or done.exception())  # a start tells it
    engine = await LocalEngine.start(settings)
    live = LiveAdapters(limits=settings.lora)
    adapters: AdapterHost | None = None

    async def close() -> None:
        if adapters is not None:
            await adapters.close()
        await engine.close()

    try:
        loop = await asyncio.to_thread(load_loop, await files, engine, settings.tool_syntax, live)
        adapters = host_adapters(settings.lora, read_environment(), engine, live)
        if adapters is not None:
            await adapters.preload()
    except BaseException:
        await close()
        raise
    return Host(loop, engine.info.max_seqs, close, adapters)


def _find_files(settings: EngineSettings) -> ModelFiles:
    environment = read_environment()
    return resolve_model(settings.model, environment.home, hub_of(environment))


def _unless_failed(event: Event) -> Event:
    if isinstance(event, RunFailed):
        raise FailedRun(event)
    return event


def _checked(requests: Sequence[GenerateRequest]) -> list[GenerateRequest]:
    """The requests with every field of its declared type. Raises InvalidRequest."""
    return [_typed(request) for request in requests]


def _typed(request: _R) -> _R:
    try:
        return msgspec.convert(msgspec.to_builtins(request), type(request))
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidRequest(str(error)) from error


def _completions(prompts: Prompt | Sequence[Prompt], options: Options) -> list[GenerateRequest]:
    common = _options(options)
    return [
        GenerateRequest(prompt=prompt if isinstance(prompt, str) else tuple(prompt), **common)
        for prompt in _several(prompts)
    ]


def _several(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """One prompt or several, as several."""
    single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return cast("Sequence[Prompt]", [prompts] if single else prompts)


def _chat(messages: Sequence[ChatMessage], options: Options) -> GenerateRequest:
    return GenerateRequest(messages=tuple(map(_message, messages)), **_options(options))


def _either(given: str | Sequence[ChatMessage], options: Options) -> GenerateRequest:
    if isinstance(given, str):
        return GenerateRequest(prompt=given, **_options(options))
    return _chat(given, options)


def _message(message: ChatMessage) -> Message:
    if isinstance(message, Message):
        return message
    fields: Any = message if isinstance(message, dict) else {}
    role, content = fields.get("role"), fields.get("content")
    if set(fields) != {"role", "content"} or not isinstance(content, str):
        raise InvalidRequest("a message has a role and a text content", field="messages")
    return Message(role, (Text(content),))


def _options(options: Options) -> dict[str, Any]:
    """Keyword options as fields of GenerateRequest. Raises TypeError for an unknown one."""
    unknown = set(options) - Options.__optional_keys__
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}")
    fields: dict[str, Any] = {**options}
    fields["limits"] = Limits(max_tokens=fields.pop("max_tokens", None))
    if "tools" in fields:
        fields["tools"] = tuple(fields["tools"])
    stop = fields.get("stop", ())
    fields["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    return fields
