"""One model in an API process: leases for running requests, loading on demand, unloading."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from penstock.adapters.registry import LoadedAdapter
from penstock.adapters.view import AdapterView
from penstock.agent import Runners
from penstock.agent.modalities import Modalities, modalities_of
from penstock.base.errors import EngineFault, ModelError, Unavailable
from penstock.config import EngineSettings
from penstock.dialog import (
    EmbeddingRequest,
    Embeddings,
    Event,
    GenerateRequest,
    MadeImage,
    Ranking,
    RerankRequest,
    SpeechPiece,
    TextToImageRequest,
    TextToSpeechRequest,
)
from penstock.engine.adapters.catalog import AdapterLoadRequest
from penstock.engine.processes.fleet import ModelState, Status
from penstock.engine.protocol import Engine
from penstock.engine.types import AdapterState
from penstock.models.loader.sampling_defaults import SamplingDefaults

log = logging.getLogger(__name__)

LOAD_WAIT_S: Final = 300.0
"""Seconds that a request waits for a model that is being loaded."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class LoadedModel:
    """A connection to a running engine, with the objects that answer requests over it.

    `runners`: run the requests.
    `engine`: the client side of the engine.
    `serving`: returns whether the engine would accept a request now.
    `close`: closes the connection.
    """

    runners: Runners
    engine: Engine
    serving: Callable[[], bool]
    close: Callable[[], Awaitable[None]]


class ModelControl(Protocol):
    """Interface that loads and unloads models and adapters. When a call returns, the new engine
    states have been applied in this process."""

    async def load(self, model: str) -> None:
        """Load a model; return when its engine serves. Raises Unavailable if the engine cannot
        start."""
        ...

    async def unload(self, model: str) -> None:
        """Unload a model; return when its running requests have finished and its memory is free."""
        ...

    async def load_adapter(self, model: str, order: AdapterLoadRequest) -> LoadedAdapter:
        """Load an adapter and return it. If the caller is cancelled, the load continues. Raises
        AdapterRefused."""
        ...

    async def unload_adapter(self, model: str, alias: str, expected: str | None) -> LoadedAdapter:
        """Unload an adapter and return it. `expected`: the revision that the alias must have; None:
        any. Raises AdapterRefused."""
        ...

    async def sync(self) -> None:
        """Return when this process has applied all engine states sent so far."""
        ...


class ServedModel:
    """A model that this process serves while the model's engine runs.

    `open_model`: connects to the engine and loads tokenizer and templates; called when the engine
    starts.
    `control`: loads the model if it is loaded on demand.
    `on_demand`: a request for the unloaded model loads it.
    `adapters`: the model's loaded adapters, updated from the engine states.
    `settings`: the settings of its engine, None if unknown.

    Each request holds a lease on the connection. When the engine is to stop, no new leases are
    granted, and the release of the last one closes the connection. A draining engine exits once all
    API processes have closed their connections.
    """

    def __init__(
        self,
        model_id: str,
        open_model: Callable[[], Awaitable[LoadedModel]],
        control: ModelControl,
        *,
        on_demand: bool = False,
        adapters: AdapterView | None = None,
        settings: EngineSettings | None = None,
    ) -> None:
        self.id = model_id
        self.settings = settings
        self.on_demand = on_demand
        self._open_model = open_model
        self._control = control
        self.adapters = adapters or AdapterView()
        self._state = ModelState("unloaded")
        self._opened: _EngineConnection | None = None

    @property
    def status(self) -> Status:
        """The status for the model card. "reloading" if the engine is being restarted."""
        loaded = self._opened.loaded if self._opened else None
        if self._state.status == "loaded" and (loaded is None or not loaded.serving()):
            return "reloading"
        return self._state.status

    @property
    def failure(self) -> str | None:
        """A message for the model card if the last load failed, else None."""
        return "its last load failed; the server's log says why" if self._state.failure else None

    @property
    def engine(self) -> Engine | None:
        """The connected engine, or None without a connection."""
        loaded = self._opened.loaded if self._opened else None
        return loaded.engine if loaded else None

    @property
    def sampling(self) -> SamplingDefaults | None:
        """The sampling parameters of requests that set none. None if the model is not loaded or
        generates no text."""
        loaded = self._opened.loaded if self._opened else None
        return loaded.runners.sampling_defaults if loaded else None

    @property
    def modalities(self) -> Modalities | None:
        """The content that the model reads and makes, or None without a connection."""
        loaded = self._opened.loaded if self._opened else None
        if loaded is None:
            return None
        return modalities_of(loaded.runners, loaded.engine.info.media_kinds)

    @property
    def reasons(self) -> bool:
        """Whether the model is connected and writes reasoning."""
        loaded = self._opened.loaded if self._opened else None
        return loaded is not None and loaded.runners.reasons

    @property
    def embeds(self) -> bool:
        """Whether the model is connected and computes embeddings."""
        loaded = self._opened.loaded if self._opened else None
        return loaded is not None and loaded.runners.embedder is not None

    def apply(self, state: ModelState) -> None:
        """Store the new state of the engine, and open or retire the connection to it."""
        self._state = state
        self.adapters.apply(state.adapters)
        if state.status == "unloaded":
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.retire()
        elif self._opened is None:
            self._opened = _EngineConnection(asyncio.ensure_future(self._open_model()))

    def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Return the events of one run. The caller must close the generator, even after the last
        event. Raises Unavailable if the model is unloaded or cannot be loaded, and InvalidRequest
        if the model does not generate text. Either this call or the generator raises them."""
        opened = self._opened
        if opened is None or opened.loaded is None:
            return self._run_when_loaded(request)
        return _LeasedRun(opened, opened.loaded.runners.must_generate().run(request))

    async def attach(self, request: GenerateRequest) -> GenerateRequest:
        """Store the files attached to a request, and return the request with media and
        texts instead of files. Raises the exceptions of `run`."""
        async with self.lease() as model:
            return await model.runners.must_generate().attach(request)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Return the embedding vectors of the texts. Cancelling the call aborts the computation.
        Raises the exceptions of `run`."""
        async with self.lease() as model:
            return await model.runners.must_embed().embed(request)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Return the documents' order of relevance. Cancelling the call aborts the remaining
        computation. Raises the exceptions of `run`."""
        async with self.lease() as model:
            return await model.runners.must_rerank().rerank(request)

    async def speak(self, request: TextToSpeechRequest) -> AsyncGenerator[SpeechPiece, None]:
        """Yield the speech of a text, piece by piece. The caller must close the generator. Raises
        the exceptions of `run`."""
        async with (
            self.lease() as model,
            aclosing(model.runners.must_speak().speak(request)) as pieces,
        ):
            async for piece in pieces:
                yield piece

    async def paint(self, request: TextToImageRequest) -> AsyncGenerator[MadeImage, None]:
        """Yield the images of a request. The caller must close the generator. Raises the exceptions
        of `run`."""
        async with (
            self.lease() as model,
            aclosing(model.runners.must_paint().paint(request)) as images,
        ):
            async for image in images:
                yield image

    async def count(self, request: GenerateRequest) -> int:
        """Return the number of prompt tokens of a request. Raises the exceptions of `run`."""
        async with self.lease() as model:
            return await model.runners.must_generate().count(request)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[LoadedModel]:
        """Yield the loaded model, which stays loaded until the block ends. Waits for a load in
        progress, and starts one if the model may be loaded on demand. Raises Unavailable."""
        if self._opened is None:
            await self._load_on_demand()
        opened = self._opened
        if opened is None:
            raise self._absent()
        opened.leases += 1
        try:
            yield await self._ready(opened)
        finally:
            opened.release_lease()

    async def adapter_states(self) -> tuple[AdapterState, ...]:
        """Return the states of the engine's adapters, or () without a connected engine."""
        engine = self.engine
        if engine is None:
            return ()
        try:
            return await engine.adapters()
        except (Unavailable, EngineFault):
            return ()

    async def ready(self) -> None:
        """Wait until the engine is connected and tokenizer and templates are loaded. Raises the
        exceptions of `lease`."""
        async with self.lease():
            pass

    async def started(self) -> None:
        """If the engine runs, wait until it is connected. Raises ModelError."""
        if self._opened is not None:
            await asyncio.shield(self._opened.task)

    async def close(self) -> None:
        """Close the connection to the engine; running requests fail."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    async def _run_when_loaded(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        async with (
            self.lease() as model,
            aclosing(model.runners.must_generate().run(request)) as events,
        ):
            async for event in events:
                yield event

    async def _load_on_demand(self) -> None:
        if not self.on_demand:
            raise self._absent()
        await self._within_wait(self._control.load(self.id))

    async def _ready(self, opened: _EngineConnection) -> LoadedModel:
        if opened.loaded is not None:
            return opened.loaded
        try:
            return await self._within_wait(asyncio.shield(opened.task))
        except ModelError as error:
            log.error("model %s: %s", self.id, error)
            raise self._failed() from None
        except asyncio.CancelledError:
            if opened.task.cancelled():  # the engine has stopped
                raise self._absent() from None
            raise

    async def _within_wait(self, work: Awaitable[_T]) -> _T:
        try:
            return await asyncio.wait_for(work, LOAD_WAIT_S)
        except asyncio.TimeoutError:
            raise Unavailable(
                f"the model '{self.id}' is still being loaded", code="model_loading"
            ) from None

    def _absent(self) -> Unavailable:
        """Return the error for a request to a model without an engine: the last load failed, or an
        operator unloaded the model."""
        if self._state.status != "unloaded" or self._state.failure:
            return self._failed()
        return Unavailable(
            f"the model '{self.id}' was unloaded by an operator", code="model_unloaded"
        )

    def _failed(self) -> Unavailable:
        return Unavailable(f"the model '{self.id}' could not be loaded", code="model_load_failed")


class _EngineConnection:
    """One connection to an engine, and the number of leases on it. After `retire`, the release of
    the last lease closes the connection."""

    def __init__(self, task: asyncio.Future[LoadedModel]) -> None:
        self.task = task
        self.leases = 0
        self._loaded: LoadedModel | None = None
        self._retired = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def loaded(self) -> LoadedModel | None:
        task = self.task
        if self._loaded is None and task.done() and not task.cancelled() and not task.exception():
            self._loaded = task.result()
        return self._loaded

    def retire(self) -> None:
        self._retired = True
        if self.loaded is None:  # not connected yet: waiting requests get an error
            self.task.cancel()
        self._close_if_unused()

    def release_lease(self) -> None:
        self.leases -= 1
        self._close_if_unused()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        if self.loaded is not None:
            await self.loaded.close()

    def _close_if_unused(self) -> None:
        if self._retired and self.leases == 0 and self._closing is None:
            self._closing = asyncio.ensure_future(self.close())


class _LeasedRun(AsyncGenerator[Event, None]):
    """The events of a run that holds a lease until it is closed. Returns the inner generator's
    awaitables directly, because an async generator around it would add overhead to every token."""

    def __init__(self, opened: _EngineConnection, events: AsyncGenerator[Event, None]) -> None:
        self._opened: _EngineConnection | None = opened
        self._events = events
        opened.leases += 1

    def __anext__(self) -> Coroutine[Any, Any, Event]:
        return self._events.__anext__()

    def asend(self, value: None) -> Coroutine[Any, Any, Event]:
        return self._events.asend(value)

    def athrow(self, *error: Any) -> Coroutine[Any, Any, Event]:
        return self._events.athrow(*error)

    async def aclose(self) -> None:
        try:
            await self._events.aclose()
        finally:
            self._release_lease()

    def __del__(self) -> None:
        self._release_lease()

    def _release_lease(self) -> None:
        if self._opened is not None:
            self._opened.release_lease()
            self._opened = None
