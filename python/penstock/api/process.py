"""One API process: clients of the engines, the text side of their models, the store, HTTP."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.agent import FileAttachments, Runner, load_runner, loop_over
from penstock.api.app import create_app
from penstock.api.latency import MeasuredEngine
from penstock.api.metrics import Metrics
from penstock.api.registry import ModelRegistry
from penstock.api.served_model import LoadedModel, ModelControl, ServedModel
from penstock.api.services import Services
from penstock.api.serving import HttpServer
from penstock.api.tasks import ApiTask, ModelTask
from penstock.config import EngineSettings, ServerSettings, StoreSettings, read_environment
from penstock.engine.client import EngineClient
from penstock.engine.protocol import Engine
from penstock.models.hub_access import HubAccess
from penstock.models.sources import resolve_model

if TYPE_CHECKING:
    from penstock.fetch import Fetched, Fetcher
    from penstock.store import Store


class ApiProcess:
    """Serves the models of `task`. Apply the states of their engines as they change; a model opens
    while its engine loads."""

    def __init__(self, task: ApiTask, control: ModelControl) -> None:
        self._settings = task.server
        self._control = control
        self._metrics = None if task.server.disable_metrics else Metrics(task.metrics_dir)
        names = [(model.settings.id, model.settings.aliases) for model in task.models]
        self.models = ModelRegistry(
            [self._served(model) for model in task.models],
            aliases={alias: name for name, aliases in names for alias in aliases},
            default=task.default_model_id,
        )
        located = task.server.store.located(read_environment().home)
        self._store = asyncio.ensure_future(_open_store(located))
        self._attachments = asyncio.ensure_future(self._make_attachments())

    async def start(self) -> None:
        """Return when all models whose engines run are connected and the store is open. Raises
        ModelError, SettingsError."""
        await self._attachments
        await asyncio.gather(*(model.started() for model in self.models.values()))

    async def serve(self, bound: socket.socket, on_started: Callable[[HttpServer], None]) -> None:
        """Serve until a signal, or `HttpServer.stop`, ends it. Call `start` before."""
        services = Services(
            models=self.models,
            control=self._control,
            store=await self._store,
            settings=self._settings,
            metrics=self._metrics,
        )
        gc.collect()
        gc.freeze()  # what is loaded stays: no collection walks it in the middle of a stream
        gc.collect()
        gc.freeze()  # what is loaded stays: no collection walks it in the middle of a stream
        server = HttpServer(
            create_app(services), self._settings, on_started=lambda: on_started(server)
        )
        try:
            await server.serve(sockets=[bound])
        finally:
            await services.close()

    async def close(self) -> None:
        """Let go of the engines; what is still running ends with an error."""
        await self.models.close()
        await self._close_store()

    def _served(self, model: ModelTask) -> ServedModel:
        settings = model.settings
        return ServedModel(
            settings.id,
            lambda: self._open_model(settings.engine, model.socket_path),
            self._control,
            on_demand=settings.on_demand,
        )

    async def _open_model(self, settings: EngineSettings, socket_path: str) -> LoadedModel:
        """Connect to an engine that may still be loading, and load the text side meanwhile. Raises
        ModelError."""
        client = EngineClient(socket_path)
        engine: Engine = client
        if self._metrics is not None:
            engine = MeasuredEngine(client, self._metrics)
        try:
            runner = await asyncio.to_thread(_load_runner, settings, engine)
            attachments = await asyncio.shield(self._attachments)
            sessions = (await asyncio.shield(self._store)).sessions
            await client.wait_ready()
        except BaseException:
            await client.close()
            raise
        loop = loop_over(runner, attachments, sessions=sessions)
        return LoadedModel(loop, engine, lambda: client.serving, client.close)

    async def _make_attachments(self) -> FileAttachments:
        store = await self._store
        return await asyncio.to_thread(_attachments_of, store, self._settings)

    async def _close_store(self) -> None:
        """Also while it opens: that cannot be broken off."""
        opened = await asyncio.gather(self._store, return_exceptions=True)
        await asyncio.gather(self._attachments, return_exceptions=True)
        if not isinstance(opened[0], BaseException):
            await opened[0].close()


async def _open_store(settings: StoreSettings) -> Store:
    return await (await asyncio.to_thread(_import_store)).open(settings)


def _import_store() -> type[Store]:
    # A fifth of a second, in a thread of its own while engine and tokenizer load.
    from penstock.store import Store

    return Store


def _attachments_of(store: Store, settings: ServerSettings) -> FileAttachments:
    # Loads parts of the store; in a thread as well.
    from penstock.agent.attachments import Attachments

    return Attachments(store.files, _LazyFetcher(settings.fetch_allow))


class _LazyFetcher:
    """A Fetcher that is made for the first URL: its HTTP client takes a tenth of a second to load,
    which a start need not wait for."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed
        self._fetcher: Fetcher | None = None

    async def fetch(self, url: str, *, field: str) -> Fetched:
        if self._fetcher is None:
            self._fetcher = await asyncio.to_thread(_make_fetcher, self._allowed)
        return await self._fetcher.fetch(url, field=field)


def _make_fetcher(allowed: tuple[str, ...]) -> Fetcher:
    from penstock.fetch import AllowList, Fetcher

    return Fetcher(AllowList(allowed))


def _load_runner(settings: EngineSettings, engine: Engine) -> Runner:
    environment = read_environment()
    hub = HubAccess(token=environment.hf_token, cache=environment.hf_home / "hub")
    files = resolve_model(settings.model, environment.home, hub)
    return load_runner(files, engine, settings.tool_syntax)
