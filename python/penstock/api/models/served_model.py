"""One model in an API process: leases of running answers, loading on demand, unloading."""

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
from penstock.base.errors import EngineFault, ModelError, Unavailable
from penstock.dialog import (
    EmbeddingRequest,
    Embeddings,
    Event,
    GenerateRequest,
    Ranking,
    RerankRequest,
)
from penstock.engine.adapters.catalog import AdapterLoadRequest
from penstock.engine.processes.fleet import ModelState, Status
from penstock.engine.protocol import Engine
from penstock.engine.types import AdapterState
from penstock.models.loader.sampling_defaults import SamplingDefaults

log = logging.getLogger(__name__)

LOAD_WAIT_S: Final = 300.0
"""Time that a request waits for a model that is being loaded."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class LoadedModel:
    """A connection to a running engine, and what answers requests over it. `serving`: whether the
    engine would accept a request now."""

    runners: Runners
    engine: Engine
    serving: Callable[[], bool]
    close: Callable[[], Awaitable[None]]


class ModelControl(Protocol):
    """Loads and unloads models and adapters. The new states arrive before a call returns."""

    async def load(self, model: str) -> None:
        """Return when the engine serves. Raises Unavailable if it cannot."""
        ...

    async def unload(self, model: str) -> None:
        """Return when running answers have finished and the engine's memory is free."""
        ...

    async def load_adapter(self, model: str, order: AdapterLoadRequest) -> LoadedAdapter:
        """Load an adapter; the load goes on if the caller leaves. Raises AdapterRefused."""
        ...

    async def unload_adapter(self, model: str, alias: str, expected: str | None) -> LoadedAdapter:
        """Unload an adapter. Raises AdapterRefused."""
        ...

    async def sync(self) -> None:
        """Return when all changes so far have arrived."""
        ...


class ServedModel:
    """A model that this process serves while its engine runs.

    `open_model` connects to the engine and loads the text side; it is called when the engine
    starts. `adapters`: where requests look adapters up.

    When the engine is to end, no new request gets a lease, and the last lease that is released
    closes the connection: a draining engine ends when all API processes have closed theirs.
    """

    def __init__(
        self,
        model_id: str,
        open_model: Callable[[], Awaitable[LoadedModel]],
        control: ModelControl,
        *,
        on_demand: bool = False,
        adapters: AdapterView | None = None,
    ) -> None:
        self.id = model_id
        self.on_demand = on_demand
        self._open_model = open_model
        self._control = control
        self.adapters = adapters or AdapterView()
        self._state = ModelState("unloaded")
        self._opened: _EngineConnection | None = None

    @property
    def status(self) -> Status:
        """The status for the model card; an engine that is being restarted is "reloading"."""
        loaded = self._opened.loaded if self._opened else None
        if self._state.status == "loaded" and (loaded is None or not loaded.serving()):
            return "reloading"
        return self._state.status

    @property
    def failure(self) -> str | None:
        """Why the model is not loaded, if an operator should know; else None."""
        return "its last load failed; the server's log says why" if self._state.failure else None

    @property
    def engine(self) -> Engine | None:
        """The engine, None without a connection to it."""
        loaded = self._opened.loaded if self._opened else None
        return loaded.engine if loaded else None

    @property
    def sampling(self) -> SamplingDefaults | None:
        """The sampling of requests that set none; None while it is not known, and for a model that
        generates no text."""
        loaded = self._opened.loaded if self._opened else None
        return loaded.runners.sampling_defaults if loaded else None

    def apply(self, state: ModelState) -> None:
        """Apply a new state of the engine: open or retire the connection."""
        self._state = state
        self.adapters.apply(state.adapters)
        if state.status == "unloaded":
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.retire()
        elif self._opened is None:
            self._opened = _EngineConnection(asyncio.ensure_future(self._open_model()))

    def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Return the events of one run; close it, whether or not it was read to its end. Raises
        Unavailable if the model is unloaded or cannot be loaded, and InvalidRequest if it does not
        generate text; both may come from the generator instead."""
        opened = self._opened
        if opened is None or opened.loaded is None:
            return self._run_when_loaded(request)
        return _LeasedRun(opened, opened.loaded.runners.must_generate().run(request))

    async def attach(self, request: GenerateRequest) -> GenerateRequest:
        """Store the files of a request and return it with texts in their place. Raises as `run`
        does."""
        async with self.lease() as model:
            return await model.runners.must_generate().attach(request)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Return the vectors of texts; cancelling it aborts them. Raises as `run` does."""
        async with self.lease() as model:
            return await model.runners.must_embed().embed(request)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Return the order of documents; cancelling it aborts what is not computed yet. Raises as
        `run` does."""
        async with self.lease() as model:
            return await model.runners.must_rerank().rerank(request)

    async def count(self, request: GenerateRequest) -> int:
        """Return the number of tokens in the prompt of a request. Raises as `run` does."""
        async with self.lease() as model:
            return await model.runners.must_generate().count(request)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[LoadedModel]:
        """Yield the loaded model, which stays loaded within the block. Waits while it is being
        loaded, and loads it if it may be loaded on demand. Raises Unavailable."""
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
        """Return the engine's adapters, () without an engine."""
        engine = self.engine
        if engine is None:
            return ()
        try:
            return await engine.adapters()
        except (Unavailable, EngineFault):
            return ()

    async def ready(self) -> None:
        """Return when the model and its text side are loaded. Raises as `lease` does."""
        async with self.lease():
            pass

    async def started(self) -> None:
        """Return when the model is connected, if its engine runs. Raises ModelError."""
        if self._opened is not None:
            await asyncio.shield(self._opened.task)

    async def close(self) -> None:
        """Close the connection to the engine; running answers end with an error."""
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
            if opened.task.cancelled():  # the engine is gone
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
        """Return the error for a model without an engine: its load failed, or it was unloaded."""
        if self._state.status != "unloaded" or self._state.failure:
            return self._failed()
        return Unavailable(
            f"the model '{self.id}' was unloaded by an operator", code="model_unloaded"
        )

    def _failed(self) -> Unavailable:
        return Unavailable(f"the model '{self.id}' could not be loaded", code="model_load_failed")


class _EngineConnection:
    """One connection and its leases. Once retired, the last lease closes it."""

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
        if self.loaded is None:  # it has no leases
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
    """A run that holds a lease until it is closed. It passes on the awaitables of the inner
    generator, because a generator around it would cost every token another step."""

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
