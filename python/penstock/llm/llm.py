"""Defines `LLM`, a model in the calling process.

A background thread runs an asyncio loop for the requests, and the engine runs in a second thread.
The methods of `LLM` submit requests and wait. They may be called from any thread, and the `async`
methods from any asyncio loop.
"""

from __future__ import annotations

import asyncio
import os
import queue
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.registry import LoadedAdapter
from penstock.config import AgentSettings, EngineSettings
from penstock.config.validation import check_engine
from penstock.dialog import (
    AdapterRevision,
    EmbeddingRequest,
    Event,
    GenerateRequest,
    RankedDocument,
    RerankRequest,
    RunFailed,
    SpeechPiece,
    TextToImageRequest,
    TextToSpeechRequest,
)
from penstock.dialog.fold import Answer, FailedRun, Fold
from penstock.dialog.ranges import MAX_INPUTS
from penstock.engine.adapters.catalog import AdapterCatalog, AdapterLoadRequest
from penstock.llm.embedded_model import EmbeddedModel, start_embedded_model
from penstock.llm.loop_thread import LoopThread
from penstock.llm.requests import (
    ChatMessage,
    EmbeddingInput,
    Options,
    Prompt,
    chat_request,
    completion_requests,
    embedding_inputs,
    single_request,
    typed,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LLM:
    """A loaded model. Call `close` at the end, or use a `with` statement.

    - `model`: a path, a hub id or a name in the catalogue.
    - `agent`: the tools that this process runs for requests with `hosted`, None for none.
    - `settings`: fields of `EngineSettings`, such as `lora=LoraSettings()` for adapters.

    The constructor raises ModelError, and SettingsError for a setting of a wrong type or out of
    range. `**options` are the fields of `Options`. A request that cannot be served raises a
    `ServiceError` (`InvalidRequest`, `FailedRun`) with code and field.
    """

    def __init__(
        self,
        model: str | Path = EngineSettings().model,  # noqa: B008
        *,
        agent: AgentSettings | None = None,
        **settings: Any,
    ) -> None:
        checked = EngineSettings(model=os.fspath(model), **settings)
        check_engine(checked)
        self._open(lambda: start_embedded_model(checked, agent))

    @classmethod
    def from_embedded_model(cls, start: Callable[[], Awaitable[EmbeddedModel]]) -> LLM:
        """Return an LLM that uses the model that `start` returns. `start` runs in the background
        loop."""
        llm = cls.__new__(cls)
        llm._open(start)
        return llm

    def _open(self, start: Callable[[], Awaitable[EmbeddedModel]]) -> None:
        self._thread = LoopThread()
        weakref.finalize(self, self._thread.stop).atexit = False  # LoopThread has an exit handler
        try:
            self._model = self._thread.wait(self._thread.open(start))
        except BaseException:
            self.close()
            raise

    def generate(
        self, prompts: Prompt | Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Answer]:
        """Continue raw prompts, given as text or token ids. Returns one answer per prompt, in
        order."""
        return self.run(completion_requests(prompts, options))

    def chat(self, messages: Sequence[ChatMessage], **options: Unpack[Options]) -> Answer:
        """Return the answer to a conversation, given as `Message`s or dictionaries with role and
        content. The content is a text, or a list with images, recordings and videos: see
        `penstock.llm.content.content_parts`."""
        return self.run([chat_request(messages, options)])[0]

    def stream(
        self, given: str | Sequence[ChatMessage], **options: Unpack[Options]
    ) -> Iterator[Event]:
        """Yield the events of an answer to a prompt or a conversation as they happen. Closing the
        iterator early aborts the answer."""
        return self.events(single_request(given, options))

    def run(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Return the answers to requests, which the engine batches. The first error cancels all
        requests and is raised."""
        return self._thread.wait(self._answer_all([typed(request) for request in requests]))

    def events(self, request: GenerateRequest) -> Iterator[Event]:
        """Yield the events of one request. The last event is RunEnded. Raises FailedRun."""
        inbox: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        pump = self._thread.submit(self._pump(typed(request), inbox.put))
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
        """Async version of `generate`. Cancelling the call aborts the answers."""
        return await self.arun(completion_requests(prompts, options))

    async def achat(self, messages: Sequence[ChatMessage], **options: Unpack[Options]) -> Answer:
        """Async version of `chat`. Cancelling the call aborts the answer."""
        return (await self.arun([chat_request(messages, options)]))[0]

    def astream(
        self, given: str | Sequence[ChatMessage], **options: Unpack[Options]
    ) -> AsyncIterator[Event]:
        """Async version of `stream`."""
        return self.aevents(single_request(given, options))

    async def arun(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        """Async version of `run`. Cancelling the call aborts the answers."""
        return await self._thread.wait_async(
            self._answer_all([typed(request) for request in requests])
        )

    async def aevents(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Async version of `events`."""
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Event | None] = asyncio.Queue()

        def put(event: Event | None) -> None:
            with suppress(RuntimeError):  # the caller's loop has ended
                loop.call_soon_threadsafe(inbox.put_nowait, event)

        pump = self._thread.submit(self._pump(typed(request), put))
        pump.add_done_callback(lambda _: put(None))
        try:
            while (event := await inbox.get()) is not None:
                yield _unless_failed(event)
            self._thread.result(pump)
        finally:
            pump.cancel()

    def embed(
        self,
        inputs: EmbeddingInput | Sequence[EmbeddingInput],
        *,
        truncate: bool = False,
        adapter: str | AdapterRevision | None = None,
    ) -> npt.NDArray[np.float32]:
        """Return the embeddings of texts or token ids: [inputs, width] float32. Requires an
        embedding model. A model that reads images also takes Pillow images, the paths and bytes of
        files, and lists of texts and images that make one vector (`content_parts`).

        `truncate`: keep only the start of an input that is too long; otherwise it is an error.
        """
        return self._thread.wait(self._embed(inputs, truncate, adapter))

    async def aembed(
        self,
        inputs: EmbeddingInput | Sequence[EmbeddingInput],
        *,
        truncate: bool = False,
        adapter: str | AdapterRevision | None = None,
    ) -> npt.NDArray[np.float32]:
        """Async version of `embed`. Cancelling the call aborts inputs that are not computed yet."""
        return await self._thread.wait_async(self._embed(inputs, truncate, adapter))

    def rerank(
        self, query: str, documents: Sequence[str], top_n: int | None = None
    ) -> list[RankedDocument]:
        """Return the documents in order of falling relevance to a query. Requires a reranker.

        Each result has the document's index and a score from 0 to 1. `top_n`: number of documents
        to return, None for all. The end of a document that is too long is cut off.
        """
        return self._thread.wait(self._rerank(query, documents, top_n))

    async def arerank(
        self, query: str, documents: Sequence[str], top_n: int | None = None
    ) -> list[RankedDocument]:
        """Async version of `rerank`. Cancelling the call aborts pairs that are not computed yet."""
        return await self._thread.wait_async(self._rerank(query, documents, top_n))

    def speak(self, text: str, voice: str = "", speed: float = 1.0) -> SpeechPiece:
        """Return the speech of a text. Requires a speech model.

        - `voice`: a voice of the model; any other name selects its default voice.
        - `speed`: from 0.25 to 4; 2 is twice as fast as 1.
        """
        return self._thread.wait(self._speak(TextToSpeechRequest(text, None, voice, speed)))

    async def aspeak(self, text: str, voice: str = "", speed: float = 1.0) -> SpeechPiece:
        """Async version of `speak`. Cancelling the call drops sentences that are not spoken yet."""
        request = TextToSpeechRequest(text, None, voice, speed)
        return await self._thread.wait_async(self._speak(request))

    def paint(self, request: TextToImageRequest | str) -> list[bytes]:
        """Return the images of a prompt or a request, as PNG files. Requires an image model."""
        return self._thread.wait(self._paint(request))

    async def apaint(self, request: TextToImageRequest | str) -> list[bytes]:
        """Async version of `paint`. Cancelling the call stops the image that is being made."""
        return await self._thread.wait_async(self._paint(request))

    def load_adapter(
        self,
        alias: str,
        folder: str | Path,
        *,
        replace: bool = False,
        expected_revision: str | None = None,
        pinned: bool = False,
    ) -> LoadedAdapter:
        """Load a PEFT folder as the adapter `alias`. Only one load may run at a time.

        - `replace`: allow to replace a loaded adapter with this alias.
        - `expected_revision`: replace the adapter only if this is its current revision.
        - `pinned`: keep the adapter in memory.

        Raises AdapterRefused.
        """
        order = AdapterLoadRequest(
            alias, str(folder), replace, expected_revision, pinned=pinned, rooted=False
        )
        return self._thread.wait(self._adapters().load(order))

    def unload_adapter(self, alias: str, expected_revision: str | None = None) -> LoadedAdapter:
        """Unload an adapter. Answers in progress that use the adapter continue.

        `expected_revision`: unload only if this is the current revision. Raises AdapterRefused.
        """
        return self._thread.wait(self._adapters().unload(alias, expected_revision))

    def adapters(self) -> tuple[LoadedAdapter, ...]:
        """Return the loaded adapters, or () without a LoRA runtime."""
        return self._model.adapters.adapters if self._model.adapters is not None else ()

    def decide(
        self,
        approval_id: str,
        decision: Literal["approve", "deny"],
        message: str | None = None,
        *,
        remember: bool = False,
    ) -> bool:
        """Decide on a call of a server tool that waits for approval (event ApprovalRequired).

        - `message`: a text for the model, with a denial.
        - `remember`: approve all later calls of the session too.

        Returns False if the approval is unknown or already decided.
        """
        approvals = self._model.approvals
        if approvals is None:
            return False

        async def decide() -> bool:
            return approvals.decide(approval_id, decision, message, remember=remember)

        return self._thread.wait(decide())

    def close(self) -> None:
        """Abort all requests and free the model. May be called again, and from any thread."""
        self._thread.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _adapters(self) -> AdapterCatalog:
        if self._model.adapters is None:
            raise AdapterRefused(
                "lora_runtime_unavailable",
                "this LLM has no dynamic LoRA runtime; give it lora=LoraSettings()",
            )
        return self._model.adapters

    async def _answer_all(self, requests: Sequence[GenerateRequest]) -> list[Answer]:
        widest = max((request.num_sequences for request in requests), default=1)
        # Twice `max_num_seqs` sequences keep the engine busy and its queue short.
        slots = asyncio.Semaphore(max(1, 2 * self._model.max_num_seqs // max(1, widest)))

        async def answer(request: GenerateRequest) -> Answer:
            fold = Fold()
            async with slots, aclosing(self._model.runners.must_generate().run(request)) as events:
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
        inputs: EmbeddingInput | Sequence[EmbeddingInput],
        truncate: bool,
        adapter: str | AdapterRevision | None,
    ) -> npt.NDArray[np.float32]:
        given = embedding_inputs(inputs)
        requests = [
            typed(EmbeddingRequest(given[at : at + MAX_INPUTS], adapter=adapter, truncate=truncate))
            for at in range(0, len(given), MAX_INPUTS)
        ]
        embedder = self._model.runners.must_embed()
        answers = [await embedder.embed(request) for request in requests]
        width = answers[0].width if answers else 0
        data = b"".join(answer.vectors for answer in answers)
        return np.frombuffer(data, "<f4").reshape(len(given), width)

    async def _rerank(
        self, query: str, documents: Sequence[str], top_n: int | None
    ) -> list[RankedDocument]:
        given = (documents,) if isinstance(documents, str) else tuple(documents)
        request = typed(RerankRequest(query, given, top_n))
        return list((await self._model.runners.must_rerank().rerank(request)).results)

    async def _speak(self, request: TextToSpeechRequest) -> SpeechPiece:
        async with aclosing(self._model.runners.must_speak().speak(typed(request))) as spoken:
            pieces = [piece async for piece in spoken]
        audio = b"".join(piece.audio for piece in pieces)
        return SpeechPiece(audio, pieces[0].sample_rate)

    async def _paint(self, request: TextToImageRequest | str) -> list[bytes]:
        asked = TextToImageRequest(request) if isinstance(request, str) else request
        async with aclosing(self._model.runners.must_paint().paint(typed(asked))) as images:
            return [image.png async for image in images]

    async def _pump(self, request: GenerateRequest, put: Callable[[Event], None]) -> None:
        async with aclosing(self._model.runners.must_generate().run(request)) as events:
            async for event in events:
                put(event)


def _unless_failed(event: Event) -> Event:
    if isinstance(event, RunFailed):
        raise FailedRun(event)
    return event
