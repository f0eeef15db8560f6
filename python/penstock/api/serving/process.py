"""One API process: clients of the engines, the text side of their models, the store, HTTP."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.adapters.view import AdapterView
from penstock.agent import Runners, SharedState, load_runners
from penstock.agent.attachments import Attachments
from penstock.api.app import create_app
from penstock.api.models.model_catalog import ModelCatalog
from penstock.api.models.served_model import LoadedModel, ModelControl, ServedModel
from penstock.api.observability.metrics import Metrics
from penstock.api.observability.token_latency import RequestObserver
from penstock.api.services import Services
from penstock.api.serving.tasks import ApiTask, ModelTask
from penstock.api.serving.uvicorn_server import HttpServer
from penstock.config import EngineSettings, SettingsError, read_environment
from penstock.engine.ipc.client import EngineClient
from penstock.engine.protocol import Engine
from penstock.models.hub.hub_access import hub_access_of
from penstock.models.hub.sources import resolve_model
from penstock.models.loader.sampling_defaults import operator_sampling
from penstock.store.lazy_store import LazyStore
from penstock.store.sql.probe import can_open_immediately

if TYPE_CHECKING:
    from penstock.fetch import Fetched, Fetcher

log = logging.getLogger(__name__)

STORE_PAUSE_S: Final = 1.0
"""The first answers come before the store's libraries, which take a quarter of a second to load.
Whoever needs the store earlier opens it."""

GC_THRESHOLDS: Final = (20_000, 1, 1)
"""A collection walks all requests that are being answered, and they leave next to no cycles behind.
With Python's own thresholds it takes a tenth of the time, and stops all streams for a while. What
was loaded is frozen, so one of all generations walks little more than one of the youngest; it is
the one that finds what was in use at an earlier one and is a cycle now: without it the process
grows by 70 bytes with each request."""


class ApiProcess:
    """Serves the models of `task`. Apply the states of their engines as they change; a model opens
    while its engine loads."""

    def __init__(self, task: ApiTask, control: ModelControl) -> None:
        self._settings = task.server
        self._control = control
        self._metrics = None if task.server.disable_metrics else Metrics(task.metrics_dir)
        names = [(model.settings.id, model.settings.aliases) for model in task.models]
        self.models = ModelCatalog(
            [self._served(model) for model in task.models],
            aliases={alias: name for name, aliases in names for alias in aliases},
            default=task.default_model_id,
        )
        self._located = task.server.store.with_defaults(read_environment().home)
        self._store = LazyStore(self._located)
        fetcher = _LazyFetcher(task.server.fetch_allow)
        self._attachments = Attachments(self._store.files, fetcher)

    async def try_store(self) -> None:
        """Open the store, unless nothing can keep it from being opened later. `start` does it too.
        Raises SettingsError."""
        if not await asyncio.to_thread(can_open_immediately, self._located):
            await self._store.open()

    async def start(self) -> None:
        """Return when the store was tried, and all models whose engines run are connected: what
        the process needs is there before it says that it is ready. Raises ModelError,
        SettingsError."""
        await asyncio.gather(self.try_store(), *(model.started() for model in self.models.values()))

    async def serve(
        self,
        bound: socket.socket,
        on_started: Callable[[HttpServer], None],
        *,
        handles_signals: bool = True,
    ) -> None:
        """Serve until a signal, if it heeds them, or `HttpServer.stop` ends it. Call `start`
        before."""
        services = Services(
            models=self.models,
            control=self._control,
            store=self._store,
            settings=self._settings,
            metrics=self._metrics,
            adapter_updates=read_environment().lora_updates,
        )
        gc.freeze()  # what is loaded stays: no collection walks it in the middle of a stream
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        server = HttpServer(
            create_app(services),
            self._settings,
            on_started=lambda: on_started(server),
            handles_signals=handles_signals,
        )
        opening = asyncio.create_task(self._open_store())
        try:
            await server.serve(sockets=[bound])
        finally:
            opening.cancel()
            await services.close()

    async def close(self) -> None:
        """Let go of the engines; what is still running ends with an error."""
        await self.models.close()
        await self._store.close()

    async def _open_store(self) -> None:
        await asyncio.sleep(STORE_PAUSE_S)
        try:
            await self._store.open()
        except SettingsError as error:  # it could be opened a second ago, and may be again
            log.error("%s; requests that need the store are answered with 503", error)
        gc.freeze()

    def _served(self, model: ModelTask) -> ServedModel:
        settings = model.settings
        adapters = AdapterView(self._control.sync, settings.engine.lora)
        return ServedModel(
            settings.id,
            lambda: self._open_model(settings.engine, model.socket_path, adapters),
            self._control,
            on_demand=settings.on_demand,
            adapters=adapters,
        )

    async def _open_model(
        self, settings: EngineSettings, socket_path: str, adapters: AdapterView
    ) -> LoadedModel:
        """Connect to an engine that may still be loading, and load the text side meanwhile. Raises
        ModelError."""
        client = EngineClient(socket_path, RequestObserver(self._metrics))
        state = SharedState(self._attachments, self._store.sessions)
        try:
            runners = await asyncio.to_thread(_load_runners, settings, client, adapters, state)
            await client.wait_ready()
        except BaseException:
            await client.close()
            raise

        async def close() -> None:
            runners.close()
            await client.close()

        return LoadedModel(runners, client, lambda: client.serving, close)


class _LazyFetcher:
    """A Fetcher that is made for the first URL: its HTTP client takes a tenth of a second to load,
    which a start need not wait for."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed
        self._fetcher: Fetcher | None = None

    async def fetch(self, url: str, *, field: str) -> Fetched:
        if self._fetcher is None:
            made = await asyncio.to_thread(_make_fetcher, self._allowed)
            self._fetcher = self._fetcher or made  # another fetch may have been as early
        return await self._fetcher.fetch(url, field=field)


def _make_fetcher(allowed: tuple[str, ...]) -> Fetcher:
    from penstock.fetch import AllowList, Fetcher

    return Fetcher(AllowList(allowed))


def _load_runners(
    settings: EngineSettings, engine: Engine, adapters: AdapterView, state: SharedState
) -> Runners:
    environment = read_environment()
    files = resolve_model(settings.model, environment.home, hub_access_of(environment))
    sampling = operator_sampling(settings)
    return load_runners(files, engine, settings.tool_syntax, adapters, sampling, state)
